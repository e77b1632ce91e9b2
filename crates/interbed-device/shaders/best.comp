// The greatest numbers of rows, greatest first and among equals the first: a workgroup for each part of a row. Where a
// row has several parts, what they leave is given to this kernel again.
//
// A number and its place in the row make a key that falls as the number rises, so keys differ, and the smallest wins.
// NaN comes before all others.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "common.glsl"

layout(local_size_x_id = 0) in;
// Whether the row consists of keys, and not of numbers.
layout(constant_id = 1) const uint OF_KEYS = 0;

layout(push_constant, std430) uniform Push {
  uint64_t from, result;
  // Of a row, and those that are wanted of it.
  uint numbers, count;
  // Whether numbers are wanted, with their places before them, and not keys.
  uint is_last;
} push;

// Numbers of a thread.
const uint EACH = 16;
const uint64_t NONE = ~uint64_t(0);

shared uint64_t least[128];

uint64_t key_of(float number, uint place) {
  uint bits = floatBitsToUint(number), size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) {
    return uint64_t(place);
  }
  // The two zeros are one.
  bits = size == 0 ? 0 : bits;
  uint falling = bits >> 31 == 0 ? ~bits & 0x7fffffffu : bits;
  return uint64_t(falling) << 32 | place;
}

float number_of(uint64_t key) {
  uint falling = uint(key >> 32);
  return uintBitsToFloat(falling == 0 ? 0x7fc00000u : falling >> 31 == 0 ? ~falling & 0x7fffffffu : falling);
}

void main() {
  uint row = gl_WorkGroupID.y, part = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
  uint64_t at = uint64_t(row) * push.numbers;
  uint64_t keys[EACH], own = NONE;
  for (uint i = 0; i < EACH; i++) {
    uint place = (part * EACH + i) * gl_WorkGroupSize.x + thread;
    keys[i] = NONE;
    if (place < push.numbers) {
      keys[i] = OF_KEYS == 1 ? Addresses(push.from + (at + place) * 8).v[0]
                             : key_of(Floats(push.from + (at + place) * 4).v[0], place);
    }
    own = min(own, keys[i]);
  }
  uint64_t first = (uint64_t(row) * gl_NumWorkGroups.x + part) * push.count;
  for (uint n = 0; n < push.count; n++) {
    uint high = uint(own >> 32), low = uint(own);
    uint least_high = subgroupMin(high), least_low = subgroupMin(high == least_high ? low : 0xffffffffu);
    if (gl_SubgroupInvocationID == 0) {
      least[gl_SubgroupID] = uint64_t(least_high) << 32 | least_low;
    }
    barrier();
    uint64_t best = NONE;
    for (uint i = 0; i < gl_NumSubgroups; i++) {
      best = min(best, least[i]);
    }
    barrier();
    if (thread == 0) {
      if (push.is_last == 1) {
        Floats to = Floats(push.result + (first + n) * 8);
        to.v[0] = float(uint(best));
        to.v[1] = number_of(best);
      } else {
        Addresses(push.result + (first + n) * 8).v[0] = best;
      }
    }
    if (own == best) {
      own = NONE;
      for (uint i = 0; i < EACH; i++) {
        own = keys[i] > best ? min(own, keys[i]) : own;
      }
    }
  }
}
