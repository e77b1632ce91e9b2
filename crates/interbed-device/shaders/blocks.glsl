// Blocks of 32 numbers of quantised weights as small integers, four to a word, with what they are scaled by: the codes
// and fields of the processor's kernels (`interbed-kernels/src/quantized/formats.rs`). Comes after `weights.glsl`.

// The exact sum of four products of signed bytes. Compilers of GLSL that do not know `dotPacked4x8EXT` yet know this.
spirv_instruction(capabilities = [6019, 6018], id = 4450)
int dot_of_bytes(int a, int b, spirv_literal int packed_4x8);

int dot_of_four(int a, int b, int sum) { return sum + dot_of_bytes(a, b, 0); }

// Whether each half of a block has a factor of its own, and whether a minimum is subtracted from each number.
bool has_halves(uint type) { return type == Q2_K || type == Q3_K || type == Q6_K; }
bool has_minima(uint type) { return type == Q4_1 || type == Q5_1 || type == Q2_K || type == Q4_K || type == Q5_K; }

struct Block {
  int codes[8];
  float scale, minimum;
  // Integer factors of the two halves, and of their minima.
  ivec2 factors, minima;
};

// 16 bytes at any address, by whole words: one more where they do not begin at one.
uvec4 sixteen_bytes(uint64_t at) {
  uint shift = 8 * (uint(at) & 3);
  Words from = Words(at & ~uint64_t(3));
  uvec4 low = uvec4(from.v[0], from.v[1], from.v[2], from.v[3]);
  uint last = Words((at + 15) & ~uint64_t(3)).v[0];
  uvec4 high = uvec4(low.yzw, last);
  return low >> shift | high << 1 << (31 - shift);
}

// `bytes - offset` for each byte under 128, without borrowing from its neighbour.
uint less(uint bytes, uint offset) { return ((bytes | 0x80808080u) - offset * 0x01010101u) ^ 0x80808080u; }

// Bit `i` of four to the lowest bit of byte `i`.
uint spread(uint bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

// The values of four nibbles, one in each byte.
uint look_up(uint type, uint nibbles) {
  uint values = 0;
  [[unroll]] for (uint i = 0; i < 4; i++) {
    uint n = nibbles >> 8 * i & 15;
    int value = type == IQ4_NL ? IQ4_NL_VALUES[n] : MXFP4_VALUES[n];
    values |= uint(value & 255) << 8 * i;
  }
  return values;
}

// Block of 32 number `number` of a row.
Block block_of(uint type, uint64_t row, uint number) {
  Block b;
  b.minimum = 0.0;
  b.factors = b.minima = ivec2(0);
  uint words[8];
  if (type == Q8_0) {
    uint64_t block = row + uint64_t(number) * 34;
    b.scale = half_at(block);
    uvec4 low = sixteen_bytes(block + 2), high = sixteen_bytes(block + 18);
    [[unroll]] for (uint i = 0; i < 4; i++) {
      words[i] = low[i];
      words[4 + i] = high[i];
    }
  } else if (type == Q4_0 || type == Q4_1 || type == Q5_0 || type == Q5_1 || type == IQ4_NL || type == MXFP4) {
    uint bytes = type == Q4_1 ? 20 : type == Q5_0 ? 22 : type == Q5_1 ? 24 : type == MXFP4 ? 17 : 18;
    uint nibbles = type == Q4_1 ? 4 : type == Q5_0 ? 6 : type == Q5_1 ? 8 : type == MXFP4 ? 1 : 2;
    uint64_t block = row + uint64_t(number) * bytes;
    b.scale = type == MXFP4 ? half_power(byte_at(block)) : half_at(block);
    if (has_minima(type)) {
      // The file has what is added.
      b.minimum = -half_at(block + 2);
    }
    uvec4 both = sixteen_bytes(block + nibbles);
    uint fifths = 0;
    if (type == Q5_0 || type == Q5_1) {
      uint64_t at = block + (type == Q5_0 ? 2 : 4);
      fifths = half_bits(at) | half_bits(at + 2) << 16;
    }
    [[unroll]] for (uint i = 0; i < 4; i++) {
      words[i] = both[i] & 0x0f0f0f0fu;
      words[4 + i] = both[i] >> 4 & 0x0f0f0f0fu;
    }
    [[unroll]] for (uint i = 0; i < 8; i++) {
      if (type == Q5_0 || type == Q5_1) {
        words[i] |= spread(fifths >> 4 * i) << 4;
      }
      if (type == Q4_0 || type == Q5_0) {
        words[i] = less(words[i], type == Q4_0 ? 8 : 16);
      } else if (type == IQ4_NL || type == MXFP4) {
        words[i] = look_up(type, words[i]);
      }
    }
  } else {
    // Of the eight blocks of a block of 256.
    uint sub = number & 7;
    uint bytes = type == Q2_K ? 84 : type == Q3_K ? 110 : type == Q4_K ? 144 : type == Q5_K ? 176 : 210;
    uint64_t block = row + uint64_t(number >> 3) * bytes;
    // Where the low bits of the codes are, and how far up in their bytes; and the high bits.
    uint low_at, low_shift, low_mask, high_at = 0, high_shift = 0, high_mask = 0, high_up = 0, offset = 0;
    if (type == Q2_K || type == Q3_K) {
      low_at = (type == Q2_K ? 16 : 32) + sub / 4 * 32;
      low_shift = sub % 4 * 2;
      low_mask = 0x03030303u;
    } else if (type == Q6_K) {
      low_at = sub / 4 * 64 + sub % 2 * 32;
      low_shift = sub % 4 / 2 * 4;
      low_mask = 0x0f0f0f0fu;
    } else {
      low_at = (type == Q4_K ? 16 : 48) + sub / 2 * 32;
      low_shift = sub % 2 * 4;
      low_mask = 0x0f0f0f0fu;
    }
    if (type == Q3_K) {
      high_shift = sub;
      high_mask = 0x01010101u;
      high_up = 2;
      offset = 4;
    } else if (type == Q5_K) {
      high_at = 16;
      high_shift = sub;
      high_mask = 0x01010101u;
      high_up = 4;
    } else if (type == Q6_K) {
      high_at = 128 + sub / 4 * 32;
      high_shift = sub % 4 * 2;
      high_mask = 0x03030303u;
      high_up = 4;
      offset = 32;
    }
    [[unroll]] for (uint part = 0; part < 2; part++) {
      uvec4 low = sixteen_bytes(block + low_at + 16 * part) >> low_shift & low_mask;
      if (high_mask != 0) {
        low |= (sixteen_bytes(block + high_at + 16 * part) >> high_shift & high_mask) << high_up;
      }
      [[unroll]] for (uint i = 0; i < 4; i++) {
        words[4 * part + i] = offset == 0 ? low[i] : less(low[i], offset);
      }
    }
    if (type == Q2_K) {
      uint two = half_bits(block + 2 * sub);
      b.scale = half_at(block + 80);
      b.minimum = half_at(block + 82);
      b.factors = ivec2(two & 15, two >> 8 & 15);
      b.minima = ivec2(two >> 4 & 15, two >> 12);
    } else if (type == Q3_K) {
      b.scale = half_at(block + 108);
      b.factors = ivec2(q3_scale(block + 96, 2 * sub), q3_scale(block + 96, 2 * sub + 1)) - 32;
    } else if (type == Q6_K) {
      b.scale = half_at(block + 208);
      b.factors = ivec2(signed_at(block + 192 + 2 * sub), signed_at(block + 193 + 2 * sub));
    } else {
      uvec2 packed = scale_and_minimum(block + 4, sub);
      b.scale = half_at(block) * float(packed.x);
      b.minimum = half_at(block + 2) * float(packed.y);
    }
  }
  [[unroll]] for (uint i = 0; i < 8; i++) {
    b.codes[i] = int(words[i]);
  }
  return b;
}
