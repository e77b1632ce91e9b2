// A causal convolution of the products of two projections, with taps for each channel; a third projection multiplies
// the result. One thread for each channel of each sequence goes through the sequence's tokens with the last inputs at
// hand.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "states.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TAPS = 3;

layout(push_constant, std430) uniform Push {
  uint64_t projections, result, weights, bias, spans;
  uint channels, weight_type, bias_type, sequences;
} push;

void main() {
  uint channel = gl_GlobalInvocationID.x;
  if (channel >= push.channels) {
    return;
  }
  float taps[TAPS];
  [[unroll]] for (uint tap = 0; tap < TAPS; tap++) {
    taps[tap] = plain_number(push.weight_type, push.weights, channel * TAPS + tap);
  }
  float bias = push.bias == 0 ? 0.0 : plain_number(push.bias_type, push.bias, channel);
  for (uint sequence = gl_WorkGroupID.y; sequence < push.sequences; sequence += gl_NumWorkGroups.y) {
    StateSpan span = StateSpans(push.spans).v[sequence];
    // The newest input comes last.
    float inputs[TAPS];
    [[unroll]] for (uint row = 0; row + 1 < TAPS; row++) {
      inputs[row + 1] = span.from == 0 ? 0.0 : Floats(span.from).v[row * push.channels + channel];
    }
    for (uint token = 0; token < span.tokens; token++) {
      [[unroll]] for (uint tap = 0; tap + 1 < TAPS; tap++) {
        inputs[tap] = inputs[tap + 1];
      }
      uint64_t row = uint64_t(span.row + token) * push.channels * 4;
      Floats from = Floats(push.projections + 3 * row);
      precise float newest = from.v[channel] * from.v[2 * push.channels + channel];
      inputs[TAPS - 1] = newest;
      precise float sum = bias;
      [[unroll]] for (uint tap = 0; tap < TAPS; tap++) {
        sum = fma(taps[tap], inputs[tap], sum);
      }
      precise float gated = from.v[push.channels + channel] * sum;
      Floats(push.result + row).v[channel] = gated;
      if (token + 1 == span.stored_after) {
        [[unroll]] for (uint row = 0; row + 1 < TAPS; row++) {
          Floats(span.to).v[row * push.channels + channel] = inputs[row + 1];
        }
      }
    }
  }
}
