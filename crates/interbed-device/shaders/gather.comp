// Rows of a table as f32, times a factor: one workgroup for each row.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "common.glsl"
#include "weights.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 0;

layout(push_constant, std430) uniform Push {
  uint64_t table, numbers, result;
  uint row_bytes, cols, patches;
  float multiplier;
  uint rows;
} push;

void main() {
  uint number = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (number >= push.rows) {
    return;
  }
  uint64_t row = push.table + uint64_t(Words(push.numbers).v[number]) * push.row_bytes;
  Floats result = Floats(push.result + uint64_t(number) * push.cols * 4);
  uint thread = gl_LocalInvocationID.x;
  if (!ends_anywhere(TYPE) || push.cols % 8 == 0) {
    for (uint unit = thread; unit < push.cols / 8; unit += gl_WorkGroupSize.x) {
      float v[8];
      eight_numbers(TYPE, row, push.patches, unit, v);
      for (uint i = 0; i < 8; i++) {
        result.v[8 * unit + i] = v[i] * push.multiplier;
      }
    }
  } else {
    for (uint col = thread; col < push.cols; col += gl_WorkGroupSize.x) {
      result.v[col] = single_number(TYPE, row, push.patches, col) * push.multiplier;
    }
  }
  if (TYPE == CODED) {
    memoryBarrierBuffer();
    barrier();
    if (gl_SubgroupID > 0) {
      return;
    }
    uint last = 0;
    for (uint first = 0; first < push.patches; first += gl_SubgroupSize) {
      uint i = first + gl_SubgroupInvocationID;
      bool is_there = i < push.patches;
      uint gap = is_there ? byte_at(row + CODED_TABLE + 2 * i) : 0;
      uint place = min(last + subgroupInclusiveAdd(gap), push.cols - 1);
      if (is_there && (gap > 0 || i == 0)) {
        uint j;
        uint64_t block = coded_unit(row + CODED_TABLE + 2 * push.patches, place / 8, j);
        uint rest = byte_at(block + 24 + j + place % 8), exponent = byte_at(row + CODED_TABLE + 2 * i + 1);
        result.v[place] = coded_number(rest, exponent) * push.multiplier;
      }
      last = subgroupMax(place);
    }
  }
}
