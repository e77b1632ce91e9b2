// The ends of products: sums that the threads of a subgroup have, added up in one order, and written. Comes after the
// push constants of a kernel whose `ROWS` and `TOKENS` a subgroup takes.

// Subgroups of a workgroup, and threads of a subgroup.
layout(constant_id = 4) const uint SUBGROUPS = 1;
layout(constant_id = 5) const uint SUBGROUP = 32;

// The sums of one row that the threads of a subgroup have: kept here so that one piece of code adds up all of them.
shared float parts[TOKENS * SUBGROUPS * SUBGROUP];

// The sum over the threads of a subgroup: each half added to the other, then quarters, and so on.
float sum_of_subgroup(float value) {
  precise float sum = value;
  [[unroll]] for (uint half_size = SUBGROUP / 2; half_size > 0; half_size /= 2) {
    sum += subgroupShuffleXor(sum, half_size);
  }
  return sum;
}

// One result, by the first thread.
void put(uint number, uint token, float part) {
  precise float sum = sum_of_subgroup(part);
  if (gl_SubgroupInvocationID == 0 && number < push.rows && token < push.tokens) {
    precise float bias = push.bias == 0 ? 0.0 : plain_number(push.bias_type, push.bias, number);
    Floats(push.result).v[token * push.stride + number] = sum + bias;
  }
}

// All results of a subgroup, of the sums that each thread has.
void put_all(float sums[4][16], uint first_row, uint first_token) {
  if (TOKENS == 1) {
    for (uint r = 0; r < ROWS; r++) {
      put(first_row + r, first_token, sums[r][0]);
    }
    return;
  }
  uint own = (gl_SubgroupID * TOKENS * SUBGROUP) + gl_SubgroupInvocationID;
  for (uint r = 0; r < ROWS; r++) {
    for (uint t = 0; t < TOKENS; t++) {
      parts[own + t * SUBGROUP] = sums[r][t];
    }
    // Each thread reads what it has written itself.
    [[dont_unroll]] for (uint t = 0; t < TOKENS; t++) {
      put(first_row + r, first_token + t, parts[own + t * SUBGROUP]);
    }
  }
}
