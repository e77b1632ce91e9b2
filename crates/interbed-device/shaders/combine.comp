// Sums of some rows, each with a factor: one thread for each column of a sum, whose terms are added in order.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant, std430) uniform Push {
  uint64_t from, result;
  // For each sum, the rows, and their factors.
  uint64_t places, factors;
  uint width, rows, each;
} push;

void main() {
  uint column = gl_GlobalInvocationID.x;
  if (column >= push.width) {
    return;
  }
  for (uint row = gl_WorkGroupID.y; row < push.rows; row += gl_NumWorkGroups.y) {
    float sum = 0.0;
    for (uint term = row * push.each; term < (row + 1) * push.each; term++) {
      uint place = Words(push.places).v[term];
      precise float scaled = Floats(push.from + uint64_t(place) * push.width * 4).v[column] * Floats(push.factors).v[term];
      sum += scaled;
    }
    Floats(push.result + uint64_t(row) * push.width * 4).v[column] = sum;
  }
}
