// `result = x / rms(x) * (weight + offset)` for each row, after `x += branch * scale` if there is a branch: one
// workgroup for each row. Without weights, `offset` stands for each of them.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "common.glsl"
#include "weights.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant, std430) uniform Push {
  uint64_t x, branch, weight, result;
  uint cols, weight_type;
  float epsilon, scale;
  uint rows;
  float offset;
  // Rows of the weight, which the rows take in turns.
  uint weights;
} push;

shared float parts[128];

void main() {
  uint row = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (row >= push.rows) {
    return;
  }
  uint64_t at = uint64_t(row) * push.cols * 4;
  Floats x = Floats(push.x + at), result = Floats(push.result + at), branch = Floats(push.branch + at);
  uint thread = gl_LocalInvocationID.x;
  float squares = 0.0;
  for (uint col = thread; col < push.cols; col += gl_WorkGroupSize.x) {
    float v = x.v[col];
    if (push.branch != 0) {
      v += branch.v[col] * push.scale;
      x.v[col] = v;
    }
    squares += v * v;
  }
  squares = subgroupAdd(squares);
  if (gl_SubgroupInvocationID == 0) {
    parts[gl_SubgroupID] = squares;
  }
  barrier();
  float sum = 0.0;
  for (uint i = 0; i < gl_NumSubgroups; i++) {
    sum += parts[i];
  }
  float factor = 1.0 / sqrt(sum / float(push.cols) + push.epsilon);
  // Each thread reads what it has written itself.
  for (uint col = thread; col < push.cols; col += gl_WorkGroupSize.x) {
    float weight = push.offset;
    if (push.weight != 0) {
      weight += plain_number(push.weight_type, push.weight, row % push.weights * push.cols + col);
    }
    result.v[col] = x.v[col] * factor * weight;
  }
}
