// Merges the parts of rows whose segments were computed side by side: one workgroup for each row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "merge.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint DIM = 64;

layout(push_constant, std430) uniform Push {
  uint64_t parts, result;
  // How many parts the rows of each token have.
  uint64_t counts, sinks;
  uint heads, parts_per_row, sink_type;
} push;

void main() {
  uint head = gl_WorkGroupID.x, token = gl_WorkGroupID.y;
  uint row = token * push.heads + head, count = Words(push.counts).v[token];
  uint64_t first = uint64_t(row) * push.parts_per_row * (DIM + 2);
  for (uint i = gl_LocalInvocationID.x; i < DIM; i += gl_WorkGroupSize.x) {
    float most = -1.0 / 0.0, all = 0.0, whole = 0.0;
    for (uint part = 0; part < count; part++) {
      Floats from = Floats(push.parts + 4 * (first + uint64_t(part) * (DIM + 2)));
      vec2 share = merge(most, all, from.v[0], from.v[1]);
      whole = merged(whole, from.v[2 + i], share);
    }
    vec2 last = sunk(push.sinks, push.sink_type, head, most, all);
    Floats(push.result).v[row * DIM + i] = finished(whole, last);
  }
}
