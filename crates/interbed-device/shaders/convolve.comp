// A causal convolution of each channel with taps and a bias of its own, and SiLU, in place: one thread for each channel of each
// sequence, which goes through the sequence's tokens with the last inputs at hand.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "states.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TAPS = 4;

layout(push_constant, std430) uniform Push {
  // The bias may be 0.
  uint64_t x, weights, bias, spans;
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
      Floats x = Floats(push.x + uint64_t(span.row + token) * push.channels * 4);
      inputs[TAPS - 1] = x.v[channel];
      precise float sum = taps[0] * inputs[0];
      [[unroll]] for (uint tap = 1; tap < TAPS; tap++) {
        sum = fma(taps[tap], inputs[tap], sum);
      }
      if (push.bias != 0) {
        sum += bias;
      }
      precise float result = sum / (1.0 + exp(-sum));
      x.v[channel] = result;
      if (token + 1 == span.stored_after) {
        [[unroll]] for (uint row = 0; row + 1 < TAPS; row++) {
          Floats(span.to).v[row * push.channels + channel] = inputs[row + 1];
        }
      }
    }
  }
}
