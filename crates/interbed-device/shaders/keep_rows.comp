// Moves some rows, in ascending order, to the front: one thread for each column.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant, std430) uniform Push {
  uint64_t x, numbers;
  uint width, rows;
} push;

void main() {
  uint column = gl_GlobalInvocationID.x;
  if (column >= push.width) {
    return;
  }
  for (uint row = 0; row < push.rows; row++) {
    uint from = Words(push.numbers).v[row];
    Floats(push.x + uint64_t(row) * push.width * 4).v[column] =
        Floats(push.x + uint64_t(from) * push.width * 4).v[column];
  }
}
