// The states that sequences continue from.

// One sequence of a batch: where its state begins before its first token (0 for zeros) and where it is written; the row
// of its first token in tensors of the batch, and how many it has; after how many of them the state is written.
struct StateSpan {
  uint64_t from, to;
  uint row, tokens, stored_after, unused;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer StateSpans { StateSpan v[]; };
