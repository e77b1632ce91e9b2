// Rotates queries and keys, and writes keys and values into the cache, as rounded to its type: one workgroup for each
// head of each token, first those of queries, then of keys, then of values.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "kv.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint KV_TYPE = 0;
layout(constant_id = 2) const uint DIM = 64;
// Pairs are neighbours, and not the halves of a head.
layout(constant_id = 3) const bool NEIGHBOURS = false;
// How many numbers of a head are rotated, from its first on; even.
layout(constant_id = 4) const uint ROTATED = 64;

layout(push_constant, std430) uniform Push {
  uint64_t q, k, v, cos, sin;
  // For each token, the address of its slot's first byte if its head began its block.
  uint64_t slots;
  uint heads, kv_heads;
  // From the start of a block to the layer's first key, from one head's slots to the next's, from keys to values.
  uint first_key, head_bytes, to_values;
  uint tokens;
} push;

shared float row[DIM];

void main() {
  // First a token's heads, then the next token's.
  uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x, heads = push.heads + 2 * push.kv_heads;
  uint token = group / heads, head = group % heads, thread = gl_LocalInvocationID.x;
  if (token >= push.tokens) {
    return;
  }
  bool is_query = head < push.heads, is_value = head >= push.heads + push.kv_heads;
  uint own = is_query ? head : is_value ? head - push.heads - push.kv_heads : head - push.heads;
  uint64_t from = is_query ? push.q : is_value ? push.v : push.k;
  uint count = is_query ? push.heads : push.kv_heads;
  Floats numbers = Floats(from + (uint64_t(token) * count + own) * DIM * 4);
  if (is_value) {
    for (uint i = thread; i < DIM; i += gl_WorkGroupSize.x) {
      row[i] = numbers.v[i];
    }
  } else {
    for (uint i = ROTATED + thread; i < DIM; i += gl_WorkGroupSize.x) {
      row[i] = numbers.v[i];
    }
    const uint PAIRS = ROTATED / 2;
    for (uint i = thread; i < PAIRS; i += gl_WorkGroupSize.x) {
      float cosine = Floats(push.cos).v[token * PAIRS + i], sine = Floats(push.sin).v[token * PAIRS + i];
      uint low = NEIGHBOURS ? 2 * i : i, high = NEIGHBOURS ? 2 * i + 1 : i + PAIRS;
      float a = numbers.v[low], b = numbers.v[high];
      row[low] = a * cosine - b * sine;
      row[high] = b * cosine + a * sine;
      numbers.v[low] = row[low];
      numbers.v[high] = row[high];
    }
  }
  if (is_query) {
    return;
  }
  barrier();
  uint64_t slot = Addresses(push.slots).v[token] + push.first_key + own * push.head_bytes;
  slot += is_value ? push.to_values : 0;
  if (KV_TYPE == KV_Q8) {
    uint groups = (DIM + KV_SCALED - 1) / KV_SCALED;
    for (uint group = thread; group < groups; group += gl_WorkGroupSize.x) {
      uint first = group * KV_SCALED, end = min(first + KV_SCALED, DIM), greatest = 0;
      for (uint i = first; i < end; i++) {
        // Without the sign, floats are ordered as their bits are, and what is not finite comes last.
        greatest = max(greatest, floatBitsToUint(row[i]) & 0x7fffffffu);
      }
      bool is_finite = greatest < 0x7f800000u, is_zero = greatest == 0;
      // Rounded up, so that no integer is beyond 127; an overflow must show.
      uint scale = max(floatBitsToUint(uintBitsToFloat(greatest) / 127.0) + 0xffffu & 0xffff0000u, 0x10000u);
      Halves(slot).v[group] = uint16_t(is_zero ? 0 : is_finite ? scale >> 16 : 0x7fc0u);
      for (uint i = first; i < end; i++) {
        float q = is_zero || !is_finite ? 0.0 : roundEven(row[i] / uintBitsToFloat(scale));
        Bytes(slot + 2 * groups).v[i] = uint8_t(uint(int(q)) & 255);
      }
    }
    return;
  }
  for (uint i = thread; i < DIM; i += gl_WorkGroupSize.x) {
    uint bits = floatBitsToUint(row[i]);
    if (KV_TYPE == KV_F32) {
      Floats(slot).v[i] = row[i];
    } else if (KV_TYPE == KV_F16) {
      Halves(slot).v[i] = uint16_t(packHalf2x16(vec2(row[i], 0.0)) & 0xffffu);
    } else {
      // To nearest, ties to even; a NaN stays one.
      uint rounded = bits + 0x7fffu + (bits >> 16 & 1) >> 16;
      Halves(slot).v[i] = uint16_t(isnan(row[i]) ? bits >> 16 | 0x40u : rounded);
    }
  }
}
