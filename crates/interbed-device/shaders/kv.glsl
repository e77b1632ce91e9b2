// Keys and values as the cache keeps them. `KV_TYPE` is the number of a `KvDType`, see `kernels.rs`.

const uint KV_F32 = 0, KV_F16 = 1, KV_BF16 = 2, KV_Q8 = 3;

// Numbers that share a scale in KV_Q8.
const uint KV_SCALED = 32;

// Bytes of one head of one token, keys or values.
uint slot_bytes(uint type, uint dim) {
  return type == KV_F32 ? 4 * dim : type == KV_Q8 ? dim + 2 * ((dim + KV_SCALED - 1) / KV_SCALED) : 2 * dim;
}

// Number `i` of a slot.
float kv_number(uint type, uint64_t slot, uint dim, uint i) {
  if (type == KV_F32) {
    return Floats(slot).v[i];
  }
  if (type == KV_F16) {
    return unpackHalf2x16(uint(Halves(slot).v[i])).x;
  }
  if (type == KV_BF16) {
    return uintBitsToFloat(uint(Halves(slot).v[i]) << 16);
  }
  float scale = uintBitsToFloat(uint(Halves(slot).v[i / KV_SCALED]) << 16);
  uint64_t integers = slot + 2 * ((dim + KV_SCALED - 1) / KV_SCALED);
  return scale * float(int(uint(Bytes(integers).v[i]) << 24) >> 24);
}
