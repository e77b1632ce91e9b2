// The gated delta rule: a workgroup takes some columns of one head's matrix through all tokens of a sequence, one after
// the other. Columns never mix, and a column's rows are divided among neighbouring threads of a subgroup, which keep
// them in registers. Queries and keys have been normalized (see delta_gates.comp).
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "common.glsl"
#include "states.glsl"

layout(local_size_x_id = 0) in;
// Rows of a matrix: the numbers of a key.
layout(constant_id = 1) const uint HEIGHT = 128;
// Threads that share a column: a power of two, and no more than a subgroup has.
layout(constant_id = 2) const uint LANES = 8;
layout(constant_id = 3) const uint SUBGROUP = 32;

// Rows of a thread: row `lane + i * LANES` for each `i`.
const uint OWN = (HEIGHT + LANES - 1) / LANES;

layout(push_constant, std430) uniform Push {
  uint64_t qkv, decays, betas, result, spans;
  // Of a token's queries, keys and values; heads of values and of keys; and of a value.
  uint width, heads, key_heads, value_width;
  // Whether neighbouring value heads share a key head; otherwise every `key_heads`-th does.
  uint are_neighbours;
} push;

// Of the token at hand and of the next one.
shared float queries[2][OWN * LANES];
shared float keys[2][OWN * LANES];

// The sum over the threads of a column, in one order.
float sum_of_column(float value) {
  precise float sum = value;
  [[unroll]] for (uint half_size = LANES / 2; half_size > 0; half_size /= 2) {
    sum += subgroupShuffleXor(sum, half_size);
  }
  return sum;
}

void load_token(uint row, uint key_head, uint place) {
  uint64_t numbers = push.qkv + (uint64_t(row) * push.width + key_head * HEIGHT) * 4;
  Floats query = Floats(numbers), key = Floats(numbers + uint64_t(push.key_heads) * HEIGHT * 4);
  for (uint i = gl_LocalInvocationID.x; i < HEIGHT; i += gl_WorkGroupSize.x) {
    queries[place][i] = query.v[i];
    keys[place][i] = key.v[i];
  }
}

void main() {
  uint thread = gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
  uint columns = gl_WorkGroupSize.x / LANES, parts = (push.value_width + columns - 1) / columns;
  uint head = gl_WorkGroupID.x / parts, column = gl_WorkGroupID.x % parts * columns + thread / LANES;
  uint lane = thread % LANES;
  uint key_head = push.are_neighbours != 0 ? head / (push.heads / push.key_heads) : head % push.key_heads;
  bool is_there = column < push.value_width;
  StateSpan span = StateSpans(push.spans).v[gl_WorkGroupID.y];
  uint64_t at = (uint64_t(head) * HEIGHT * push.value_width + column) * 4;

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
      queries[place][i] = 0.0;
      keys[place][i] = 0.0;
    }
  }
  load_token(span.row, key_head, 0);
  barrier();

  for (uint token = 0; token < span.tokens; token++) {
    uint row = span.row + token, place = token % 2, gate = row * push.heads + head;
    if (token + 1 < span.tokens) {
      load_token(row + 1, key_head, 1 - place);
    }
    float decay = Floats(push.decays).v[gate], beta = Floats(push.betas).v[gate], value = 0.0;
    uint64_t values = push.qkv + (uint64_t(row) * push.width + 2 * push.key_heads * HEIGHT) * 4;
    if (is_there) {
      value = Floats(values).v[head * push.value_width + column];
    }
    precise float found = 0.0;
    [[unroll]] for (uint i = 0; i < OWN; i++) {
      found = fma(keys[place][lane + i * LANES], state[i], found);
    }
    found = sum_of_column(found);
    precise float change = beta * fma(-decay, found, value);
    precise float sum = 0.0;
    [[unroll]] for (uint i = 0; i < OWN; i++) {
      precise float kept = decay * state[i];
      kept = fma(keys[place][lane + i * LANES], change, kept);
      state[i] = kept;
      sum = fma(queries[place][lane + i * LANES], kept, sum);
    }
    sum = sum_of_column(sum);
    if (is_there && lane == 0) {
      Floats(push.result).v[gate * push.value_width + column] = sum;
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
