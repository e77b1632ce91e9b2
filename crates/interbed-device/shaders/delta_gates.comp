// What the delta rule needs of each token before its state is known, in place: queries and keys of length one, and
// gates. One workgroup for each head of queries and of keys of each token, and one for the token's gates.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "common.glsl"
#include "weights.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant, std430) uniform Push {
  // Queries, keys and values of each token, `width` numbers; then the gates of each token, `heads` numbers each.
  uint64_t qkv, a, b;
  // Of each head.
  uint64_t rates, bias;
  uint width, heads, key_heads, key_width, tokens, rate_type, bias_type;
  // Whether the rates are logarithms.
  uint are_logarithms;
  float epsilon;
} push;

shared float parts[128];

// log(1 + y) where y is not below 0, also if it is tiny.
float log_of_more(float y) {
  precise float more = 1.0 + y;
  precise float result = more == 1.0 ? y : log(more) * (y / (more - 1.0));
  return isinf(more) ? more : result;
}

void open_gates(uint token) {
  Floats a = Floats(push.a + uint64_t(token) * push.heads * 4), b = Floats(push.b + uint64_t(token) * push.heads * 4);
  for (uint head = gl_LocalInvocationID.x; head < push.heads; head += gl_WorkGroupSize.x) {
    float rate = plain_number(push.rate_type, push.rates, head);
    rate = push.are_logarithms != 0 ? -exp(rate) : rate;
    precise float x = a.v[head] + plain_number(push.bias_type, push.bias, head);
    float forgets = x > 20.0 ? x : log_of_more(exp(x));
    precise float exponent = rate * forgets;
    a.v[head] = exp(exponent);
    precise float learns = 1.0 / (1.0 + exp(-b.v[head]));
    b.v[head] = learns;
  }
}

void main() {
  // First a token's heads, then its gates, then the next token's.
  uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x, each = 2 * push.key_heads + 1;
  uint token = group / each, head = group % each, thread = gl_LocalInvocationID.x;
  if (token >= push.tokens) {
    return;
  }
  if (head == 2 * push.key_heads) {
    open_gates(token);
    return;
  }
  Floats x = Floats(push.qkv + (uint64_t(token) * push.width + head * push.key_width) * 4);
  float squares = 0.0;
  for (uint i = thread; i < push.key_width; i += gl_WorkGroupSize.x) {
    squares += x.v[i] * x.v[i];
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
  float scale = head < push.key_heads ? 1.0 / sqrt(float(push.key_width)) : 1.0;
  precise float factor = scale / sqrt(sum + push.epsilon);
  for (uint i = thread; i < push.key_width; i += gl_WorkGroupSize.x) {
    x.v[i] *= factor;
  }
}
