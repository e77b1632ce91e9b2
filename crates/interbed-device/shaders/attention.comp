// Attention with online softmax: one workgroup for a tile of rows (consecutive tokens of a sequence, with query heads
// that share a KV head) and some of the positions that they see. Positions are taken in segments of 1,024 and, within
// these, runs of 64, both counted from 0; a segment's part is summed by itself and then merged with those before it. So
// a row's result does not depend on its tile, nor on whether segments are computed side by side (see merge.comp).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "kv.glsl"
#include "merge.glsl"

const uint THREADS = 128, RUN = 64, SEGMENT = 1024, ROWS_MAX = 16;

layout(local_size_x = 128) in;
layout(constant_id = 1) const uint KV_TYPE = 0;
// Numbers of a head, a multiple of 4.
layout(constant_id = 2) const uint DIM = 64;
// Rows of a tile: at most 16, and as many as ROWS_MAX * 128 numbers are.
layout(constant_id = 3) const uint ROWS = 16;

// Threads side by side have neighbouring numbers of a value; the groups share the rows out.
const uint WIDE = DIM < THREADS ? DIM : THREADS;
const uint GROUPS = THREADS / WIDE;
const uint DEEP = (DIM + WIDE - 1) / WIDE;
const uint EACH = (ROWS + GROUPS - 1) / GROUPS;

// One tile, and the positions that it attends to here.
struct Tile {
  // Of the first token, among those of the batch.
  uint token;
  uint tokens;
  // Of the first token.
  uint position;
  // The sequence's first address among the blocks', and the position where that block begins.
  uint table;
  uint held;
  // Positions to attend to: from, and behind the last.
  uint from;
  uint end;
  // Where the sums go: 0 to the result, divided by the total; 1 to the result and its state, to be continued; 2 + n to
  // part n of the rows, which is one segment's.
  uint part;
  // Whether result and state hold what came before.
  uint continued;
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Tiles { Tile v[]; };

layout(push_constant, std430) uniform Push {
  uint64_t q, result, state, parts, tiles, blocks, sinks;
  uint heads, sharing, tile_heads, block_size, first_key, head_bytes, to_values, window, parts_per_row;
  float scale;
  uint sink_type;
} push;

shared float queries[ROWS * DIM];
shared float scores[ROWS][RUN];
shared float greatest[ROWS];
shared float total[ROWS];
shared float factors[ROWS];
// Of all segments so far.
shared float whole_greatest[ROWS];
shared float whole_total[ROWS];
shared vec2 shares[ROWS];

uint64_t block_of(Tile tile, uint position) {
  uint index = (position - tile.held) / push.block_size;
  return Addresses(push.blocks).v[tile.table + index];
}

void main() {
  Tile tile = Tiles(push.tiles).v[gl_WorkGroupID.x];
  uint thread = gl_LocalInvocationID.x;
  uint head_tiles = (push.sharing + push.tile_heads - 1) / push.tile_heads;
  uint kv_head = gl_WorkGroupID.y / head_tiles, head_tile = gl_WorkGroupID.y % head_tiles;
  uint first_head = kv_head * push.sharing + head_tile * push.tile_heads;
  uint heads = min(push.tile_heads, push.sharing - head_tile * push.tile_heads);
  uint rows = heads * tile.tokens;
  uint key_offset = push.first_key + kv_head * push.head_bytes;
  uint bytes = slot_bytes(KV_TYPE, DIM);

  for (uint i = thread; i < rows * DIM; i += THREADS) {
    uint r = i / DIM;
    uint row = (tile.token + r / heads) * push.heads + first_head + r % heads;
    queries[i] = Floats(push.q).v[row * DIM + i % DIM] * push.scale;
  }
  uint column = thread % WIDE, group = thread / WIDE;
  precise float sums[DEEP][EACH];
  precise float whole[DEEP][EACH];
  for (uint d = 0; d < DEEP; d++) {
    for (uint e = 0; e < EACH; e++) {
      uint r = group + e * GROUPS, i = column + d * WIDE;
      whole[d][e] = 0.0;
      if (tile.continued != 0 && group < GROUPS && r < rows && i < DIM) {
        uint row = (tile.token + r / heads) * push.heads + first_head + r % heads;
        whole[d][e] = Floats(push.result).v[row * DIM + i];
      }
    }
  }
  if (thread < rows) {
    uint row = (tile.token + thread / heads) * push.heads + first_head + thread % heads;
    whole_greatest[thread] = tile.continued != 0 ? Floats(push.state).v[2 * row] : -1.0 / 0.0;
    whole_total[thread] = tile.continued != 0 ? Floats(push.state).v[2 * row + 1] : 0.0;
  }

  for (uint segment = tile.from / SEGMENT * SEGMENT; segment < tile.end; segment += SEGMENT) {
    uint from = max(tile.from, segment), end = min(tile.end, segment + SEGMENT);
    for (uint d = 0; d < DEEP; d++) {
      for (uint e = 0; e < EACH; e++) {
        sums[d][e] = 0.0;
      }
    }
    if (thread < rows) {
      greatest[thread] = -1.0 / 0.0;
      total[thread] = 0.0;
    }
    barrier();

    for (uint first = from / RUN * RUN; first < end; first += RUN) {
      // Scores: a thread has one position, and every second row.
      uint position = first + thread % RUN;
      bool is_there = position >= from && position < end;
      uint64_t key = 0;
      if (is_there) {
        key = block_of(tile, position) + key_offset + (position - tile.held) % push.block_size * bytes;
      }
      float dots[ROWS_MAX / 2];
      for (uint e = 0; e < ROWS_MAX / 2; e++) {
        dots[e] = 0.0;
      }
      if (is_there) {
        for (uint i = 0; i < DIM; i += 4) {
          vec4 k = vec4(kv_number(KV_TYPE, key, DIM, i), kv_number(KV_TYPE, key, DIM, i + 1),
                        kv_number(KV_TYPE, key, DIM, i + 2), kv_number(KV_TYPE, key, DIM, i + 3));
          for (uint e = 0; 2 * e < ROWS; e++) {
            uint at = min(thread / RUN + 2 * e, ROWS - 1) * DIM + i;
            dots[e] += dot(k, vec4(queries[at], queries[at + 1], queries[at + 2], queries[at + 3]));
          }
        }
      }
      for (uint e = 0; 2 * e < ROWS; e++) {
        uint r = thread / RUN + 2 * e;
        if (r < rows) {
          uint own = tile.position + r / heads;
          bool is_seen = is_there && position <= own && (push.window == 0 || position + push.window > own);
          scores[r][thread % RUN] = is_seen ? dots[e] : -1.0 / 0.0;
        }
      }
      barrier();
      if (thread < rows) {
        float most = greatest[thread], before = most;
        for (uint i = 0; i < RUN; i++) {
          most = max(most, scores[thread][i]);
        }
        // Nothing seen yet: no differences of infinities.
        float factor = most == -1.0 / 0.0 ? 1.0 : exp(before - most), sum = total[thread] * factor;
        for (uint i = 0; i < RUN; i++) {
          float weight = scores[thread][i] == -1.0 / 0.0 ? 0.0 : exp(scores[thread][i] - most);
          scores[thread][i] = weight;
          sum += weight;
        }
        greatest[thread] = most;
        total[thread] = sum;
        factors[thread] = factor;
      }
      barrier();
      if (group < GROUPS) {
        for (uint e = 0; e < EACH; e++) {
          uint r = min(group + e * GROUPS, ROWS - 1);
          for (uint d = 0; d < DEEP; d++) {
            sums[d][e] *= factors[r];
          }
        }
        uint behind = min(first + RUN, end);
        for (uint p = max(first, from); p < behind; p++) {
          uint64_t value = block_of(tile, p) + key_offset + push.to_values + (p - tile.held) % push.block_size * bytes;
          for (uint d = 0; d < DEEP; d++) {
            uint i = column + d * WIDE;
            float v = i < DIM ? kv_number(KV_TYPE, value, DIM, i) : 0.0;
            for (uint e = 0; e < EACH; e++) {
              uint r = min(group + e * GROUPS, ROWS - 1);
              sums[d][e] = fma(v, scores[r][p - first], sums[d][e]);
            }
          }
        }
      }
      barrier();
    }

    if (thread < rows) {
      float most = whole_greatest[thread], all = whole_total[thread];
      shares[thread] = merge(most, all, greatest[thread], total[thread]);
      whole_greatest[thread] = most;
      whole_total[thread] = all;
    }
    barrier();
    for (uint e = 0; e < EACH; e++) {
      vec2 share = shares[min(group + e * GROUPS, ROWS - 1)];
      for (uint d = 0; d < DEEP; d++) {
        whole[d][e] = merged(whole[d][e], sums[d][e], share);
      }
    }
  }
  barrier();

  uint part_length = DIM + 2;
  for (uint e = 0; e < EACH; e++) {
    uint r = group + e * GROUPS;
    if (group >= GROUPS || r >= rows) {
      continue;
    }
    uint row = (tile.token + r / heads) * push.heads + first_head + r % heads;
    vec2 last = vec2(1.0);
    if (tile.part == 0) {
      last = sunk(push.sinks, push.sink_type, first_head + r % heads, whole_greatest[r], whole_total[r]);
    }
    for (uint d = 0; d < DEEP; d++) {
      uint i = column + d * WIDE;
      if (i >= DIM) {
        continue;
      }
      if (tile.part >= 2) {
        uint64_t at = (uint64_t(row) * push.parts_per_row + tile.part - 2) * part_length + 2 + i;
        Floats(push.parts + 4 * at).v[0] = whole[d][e];
      } else {
        Floats(push.result).v[row * DIM + i] = tile.part == 0 ? finished(whole[d][e], last) : whole[d][e];
      }
    }
  }
  if (thread < rows && tile.part > 0) {
    uint row = (tile.token + thread / heads) * push.heads + first_head + thread % heads;
    if (tile.part == 1) {
      Floats(push.state).v[2 * row] = whole_greatest[thread];
      Floats(push.state).v[2 * row + 1] = whole_total[thread];
    } else {
      uint64_t at = (uint64_t(row) * push.parts_per_row + tile.part - 2) * part_length;
      Floats(push.parts + 4 * at).v[0] = whole_greatest[thread];
      Floats(push.parts + 4 * at).v[1] = whole_total[thread];
    }
  }
}
