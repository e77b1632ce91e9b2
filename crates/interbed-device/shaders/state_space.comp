// A state space: a workgroup takes some columns of one head's matrix through all tokens of a sequence, one after the
// other. Columns never mix, and a column's rows are divided among neighbouring threads of a subgroup, which keep them in
// registers.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "common.glsl"
#include "weights.glsl"
#include "states.glsl"

layout(local_size_x_id = 0) in;
// Rows of a matrix: the numbers of a state.
layout(constant_id = 1) const uint HEIGHT = 128;
// Threads that share a column: a power of two, and no more than a subgroup has.
layout(constant_id = 2) const uint LANES = 8;
layout(constant_id = 3) const uint SUBGROUP = 32;

// Rows of a thread: row `lane + i * LANES` for each `i`.
const uint OWN = (HEIGHT + LANES - 1) / LANES;

layout(push_constant, std430) uniform Push {
  // What each token brings, `width` numbers: x of each head, B of each group, C of each group; then how far heads step.
  uint64_t xbc, steps, result, spans;
  // Of each head.
  uint64_t rates, bias, skip;
  uint width, heads, groups, value_width, rate_type, bias_type, skip_type;
  // Whether the rates are logarithms.
  uint are_logarithms;
  float least, most;
} push;

// Of the token at hand and of the next one: B and C of the group, and step and decay of the head.
shared float enters[2][OWN * LANES];
shared float leaves[2][OWN * LANES];
shared float gates[2][2];

// The sum over the threads of a column, in one order.
float sum_of_column(float value) {
  precise float sum = value;
  [[unroll]] for (uint half_size = LANES / 2; half_size > 0; half_size /= 2) {
    sum += subgroupShuffleXor(sum, half_size);
  }
  return sum;
}

// log(1 + y) where y is not below 0, also if it is tiny.
float log_of_more(float y) {
  precise float more = 1.0 + y;
  precise float result = more == 1.0 ? y : log(more) * (y / (more - 1.0));
  return isinf(more) ? more : result;
}

void load_token(uint row, uint head, float rate, float bias, uint place) {
  uint group = head / (push.heads / push.groups);
  uint64_t numbers = push.xbc + (uint64_t(row) * push.width + push.heads * push.value_width + group * HEIGHT) * 4;
  Floats enter = Floats(numbers), leave = Floats(numbers + uint64_t(push.groups) * HEIGHT * 4);
  for (uint i = gl_LocalInvocationID.x; i < HEIGHT; i += gl_WorkGroupSize.x) {
    enters[place][i] = enter.v[i];
    leaves[place][i] = leave.v[i];
  }
  if (gl_LocalInvocationID.x == 0) {
    precise float x = Floats(push.steps).v[row * push.heads + head] + bias;
    precise float step = x > 20.0 ? x : log_of_more(exp(x));
    // A step that is not a number stays so.
    step = step < push.least ? push.least : step > push.most ? push.most : step;
    precise float exponent = rate * step;
    gates[place][0] = step;
    gates[place][1] = exp(exponent);
  }
}

void main() {
  uint thread = gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
  uint columns = gl_WorkGroupSize.x / LANES, parts = (push.value_width + columns - 1) / columns;
  uint head = gl_WorkGroupID.x / parts, column = gl_WorkGroupID.x % parts * columns + thread / LANES;
  uint lane = thread % LANES;
  bool is_there = column < push.value_width;
  StateSpan span = StateSpans(push.spans).v[gl_WorkGroupID.y];
  uint64_t at = (uint64_t(head) * HEIGHT * push.value_width + column) * 4;
  float rate = plain_number(push.rate_type, push.rates, head), bias = plain_number(push.bias_type, push.bias, head);
  rate = push.are_logarithms != 0 ? -exp(rate) : rate;
  float skip = plain_number(push.skip_type, push.skip, head);

  // Rows beyond the last are zeros, and stay so.
  float state[OWN];
  [[unroll]] for (uint i = 0; i < OWN; i++) {
    uint row = lane + i * LANES;
    state[i] = 0.0;
    if (is_there && row < HEIGHT && span.from != 0) {
      state[i] = Floats(span.from + at).v[row * push.value_width];
    }
  }
  for (uint i = HEIGHT + gl_LocalInvocationID.x; i < OWN * LANES; i += gl_WorkGroupSize.x) {
    for (uint place = 0; place < 2; place++) {
      enters[place][i] = 0.0;
      leaves[place][i] = 0.0;
    }
  }
  load_token(span.row, head, rate, bias, 0);
  barrier();

  for (uint token = 0; token < span.tokens; token++) {
    uint row = span.row + token, place = token % 2;
    if (token + 1 < span.tokens) {
      load_token(row + 1, head, rate, bias, 1 - place);
    }
    float x = 0.0;
    if (is_there) {
      x = Floats(push.xbc + uint64_t(row) * push.width * 4).v[head * push.value_width + column];
    }
    precise float change = gates[place][0] * x;
    float decay = gates[place][1];
    precise float sum = 0.0;
    [[unroll]] for (uint i = 0; i < OWN; i++) {
      precise float kept = decay * state[i];
      kept = fma(enters[place][lane + i * LANES], change, kept);
      state[i] = kept;
      sum = fma(leaves[place][lane + i * LANES], kept, sum);
    }
    sum = sum_of_column(sum);
    if (is_there && lane == 0) {
      precise float result = fma(skip, x, sum);
      Floats(push.result).v[(row * push.heads + head) * push.value_width + column] = result;
    }
    if (token + 1 == span.stored_after) {
      [[unroll]] for (uint i = 0; i < OWN; i++) {
        uint row = lane + i * LANES;
        if (is_there && row < HEIGHT) {
          Floats(span.to + at).v[row * push.value_width] = state[i];
        }
      }
    }
    barrier();
  }
}
