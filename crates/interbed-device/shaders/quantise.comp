// Activations as bytes, as the processor has them (`interbed-kernels/src/quantized/activations.rs`): each 32 numbers
// have a scale, their largest magnitude / 127, and integers round(x / scale). One thread for each 32.
//
// A block takes 48 bytes: 32 integers, the scale, and the sums of the integers of either half.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant, std430) uniform Push {
  uint64_t x, result;
  uint blocks;
} push;

// What is smaller counts as zero: drivers may take subnormal numbers for zeros, so no scale is one.
const float SCALE_MIN = 1.17549435e-38;

void main() {
  uint threads = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
  for (uint block = gl_GlobalInvocationID.x; block < push.blocks; block += threads) {
    Fours from = Fours(push.x + uint64_t(block) * 128);
    vec4 x[8];
    // Compared as integers, which NaN cannot slip through: infinity and NaN have the largest bits.
    uint largest = 0;
    [[unroll]] for (uint i = 0; i < 8; i++) {
      x[i] = from.v[i];
      uvec4 bits = floatBitsToUint(x[i]) & 0x7fffffffu;
      largest = max(largest, max(max(bits.x, bits.y), max(bits.z, bits.w)));
    }
    float scale = uintBitsToFloat(largest) / 127.0;
    // An overflow must show in every product.
    bool is_bad = largest >= 0x7f800000u;
    bool is_zero = is_bad || scale < SCALE_MIN;
    float inverse = is_zero ? 0.0 : 1.0 / scale;
    uint words[8];
    ivec2 sums = ivec2(0);
    [[unroll]] for (uint i = 0; i < 8; i++) {
      ivec4 codes = is_zero ? ivec4(0) : ivec4(clamp(roundEven(x[i] * inverse), -127.0, 127.0));
      sums[i / 4] += codes.x + codes.y + codes.z + codes.w;
      uvec4 bytes = uvec4(codes) & 255;
      words[i] = bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
    }
    uint scale_bits = is_bad ? 0x7fc00000u : is_zero ? 0 : floatBitsToUint(scale);
    WordFours to = WordFours(push.result + uint64_t(block) * 48);
    to.v[0] = uvec4(words[0], words[1], words[2], words[3]);
    to.v[1] = uvec4(words[4], words[5], words[6], words[7]);
    to.v[2] = uvec4(scale_bits, uint(sums.x), uint(sums.y), 0);
  }
}
