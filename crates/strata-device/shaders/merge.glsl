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

// A sum of the parts so far with that of the next one.
float merged(float whole, float part, vec2 share) {
  precise float sum = fma(whole, share.x, part * share.y);
  return sum;
}
