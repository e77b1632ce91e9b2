// How the parts of a row's attention are merged, in ascending order of their positions.

// The factors of the parts so far and of the next part in their sum. `most` and `all` are the greatest score and the
// total of the parts so far; the next part's are added to them.
vec2 merge(inout float most, inout float all, float greatest, float total) {
  float both = max(most, greatest);
  // Where nothing has been seen there are no differences of infinities.
  float old = most == -1.0 / 0.0 ? 0.0 : exp(most - both), own = greatest == -1.0 / 0.0 ? 0.0 : exp(greatest - both);
  precise float sum = fma(all, old, total * own);
  most = both;
  all = sum;
  return vec2(old, own);
}

// What is left of a row's sums and what its total becomes, once a sink has joined: a score without a value, of head
// `head`. `sinks` is 0 where there is none.
vec2 sunk(uint64_t sinks, uint type, uint head, float most, float all) {
  if (sinks == 0) {
    return vec2(1.0, all);
  }
  float sink = plain_number(type, sinks, head), both = max(most, sink);
  float own = exp(most - both);
  precise float total = fma(all, own, exp(sink - both));
  return vec2(own, total);
}

// A number of the result, with what `sunk` gave.
float finished(float whole, vec2 last) {
  precise float left = whole * last.x;
  precise float result = left / last.y;
  return result;
}

// A sum of the parts so far with that of the next one.
float merged(float whole, float part, vec2 share) {
  precise float sum = fma(whole, share.x, part * share.y);
  return sum;
}
