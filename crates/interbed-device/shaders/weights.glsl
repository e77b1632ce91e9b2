// Weights of every type, eight numbers at a time. `TYPE` is the number of a `DType`, see `kernels.rs`.

const uint F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 3, Q4_0 = 4, Q4_1 = 5, Q5_0 = 6, Q5_1 = 7, Q2_K = 8, Q3_K = 9, Q4_K = 10,
           Q5_K = 11, Q6_K = 12, IQ4_NL = 13, MXFP4 = 14, CODED = 15, FP8 = 16;

// Numbers of a coded row that one block has, and its bytes.
const uint CODED_BLOCK = 64, CODED_BLOCK_BYTES = 88, CODED_TABLE = 8;

const int IQ4_NL_VALUES[16] = int[](-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
// Twice the numbers that four bits of E2M1 stand for.
const int MXFP4_VALUES[16] = int[](0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

uint byte_at(uint64_t at) { return uint(Bytes(at).v[0]); }
int signed_at(uint64_t at) { return int(byte_at(at) << 24) >> 24; }
uint half_bits(uint64_t at) { return uint(Halves(at).v[0]); }
float half_at(uint64_t at) { return unpackHalf2x16(half_bits(at)).x; }

// Eight bytes at an even address.
uvec2 eight_bytes(uint64_t at) {
  Halves from = Halves(at);
  return uvec2(uint(from.v[0]) | uint(from.v[1]) << 16, uint(from.v[2]) | uint(from.v[3]) << 16);
}

// The same at any address.
uvec2 eight_odd_bytes(uint64_t at) {
  uvec2 all = uvec2(0);
  for (uint i = 0; i < 4; i++) {
    all.x |= byte_at(at + i) << 8 * i;
    all.y |= byte_at(at + 4 + i) << 8 * i;
  }
  return all;
}

// Byte `i` of eight.
uint of_eight(uvec2 bytes, uint i) { return (i < 4 ? bytes.x : bytes.y) >> 8 * (i & 3) & 255; }

// 2^(exponent - 128), and NaN for 255.
float half_power(uint exponent) {
  if (exponent == 255) {
    return uintBitsToFloat(0x7fc00000u);
  }
  return exponent < 2 ? uintBitsToFloat(0x00200000u << exponent) : uintBitsToFloat((exponent - 1) << 23);
}

// Scale and minimum, 6 bits each, number `sub` of the eight that Q4_K and Q5_K have in 12 bytes.
uvec2 scale_and_minimum(uint64_t packed, uint sub) {
  if (sub < 4) {
    return uvec2(byte_at(packed + sub) & 63, byte_at(packed + 4 + sub) & 63);
  }
  uint both = byte_at(packed + 4 + sub);
  return uvec2(both & 15 | byte_at(packed + sub - 4) >> 6 << 4, both >> 4 | byte_at(packed + sub) >> 6 << 4);
}

// Scale number `sub` of the sixteen that Q3_K has in 12 bytes, 6 bits each.
uint q3_scale(uint64_t packed, uint sub) {
  uint low = byte_at(packed + (sub & 7)) >> (sub < 8 ? 0 : 4) & 15;
  uint high = byte_at(packed + 8 + (sub & 3)) >> 2 * (sub >> 2) & 3;
  return low | high << 4;
}

// The number of an FP8 code, E4M3; the last code is not a number.
float e4m3(uint code) {
  uint magnitude = code & 127;
  uint bits = magnitude == 127 ? 0x7fc00000u
              : magnitude < 8 ? floatBitsToUint(float(magnitude) * 0.001953125)
                              : (magnitude << 20) + (120u << 23);
  return uintBitsToFloat(bits | (code & 128) << 24);
}

// A number of bf16 from its sign and mantissa, as coded rows keep them, and its exponent.
float coded_number(uint rest, uint exponent) {
  return uintBitsToFloat((rest & 1) << 31 | exponent << 23 | rest >> 1 << 16);
}

// Where the eight numbers `unit` of a coded row lie: plane bytes, then the others. `row` is behind header and patches.
uint64_t coded_unit(uint64_t blocks, uint unit, out uint j) {
  uint in_block = unit & 7;
  // The first half of a block and the second lie alternately, eight numbers each.
  j = (in_block & 3) * 16 + (in_block >> 2) * 8;
  return blocks + uint64_t(unit >> 3) * CODED_BLOCK_BYTES;
}

// Numbers `8 unit .. 8 unit + 8` of a row, with the roundings that the host has. Those of a coded row are as they are
// before its patches. A row of FP8 has `patches` scales, each for 128 numbers, before its codes.
void eight_numbers(uint type, uint64_t row, uint patches, uint unit, precise out float v[8]) {
  if (type == F32) {
    vec4 a = Fours(row).v[2 * unit], b = Fours(row).v[2 * unit + 1];
    for (uint i = 0; i < 4; i++) {
      v[i] = a[i];
      v[4 + i] = b[i];
    }
  } else if (type == F16 || type == BF16) {
    uvec4 pairs = WordFours(row).v[unit];
    for (uint i = 0; i < 4; i++) {
      vec2 pair = type == F16 ? unpackHalf2x16(pairs[i]) : vec2(bf16_low(pairs[i]), bf16_high(pairs[i]));
      v[2 * i] = pair.x;
      v[2 * i + 1] = pair.y;
    }
  } else if (type == Q8_0) {
    uint64_t block = row + uint64_t(unit >> 2) * 34;
    float d = half_at(block);
    uvec2 q = eight_bytes(block + 2 + 8 * (unit & 3));
    for (uint i = 0; i < 8; i++) {
      v[i] = d * float(int(of_eight(q, i) << 24) >> 24);
    }
  } else if (type == Q4_0 || type == Q4_1 || type == Q5_0 || type == Q5_1 || type == IQ4_NL || type == MXFP4) {
    uint part = unit & 3, shift = part < 2 ? 0 : 4;
    uint bytes = type == Q4_1 ? 20 : type == Q5_0 ? 22 : type == Q5_1 ? 24 : type == MXFP4 ? 17 : 18;
    uint nibbles = type == Q4_1 ? 4 : type == Q5_0 ? 6 : type == Q5_1 ? 8 : type == MXFP4 ? 1 : 2;
    uint64_t block = row + uint64_t(unit >> 2) * bytes;
    float d = type == MXFP4 ? half_power(byte_at(block)) : half_at(block);
    float m = type == Q4_1 || type == Q5_1 ? half_at(block + 2) : 0.0;
    uint64_t from = block + nibbles + 8 * (part & 1);
    uvec2 q = type == MXFP4 ? eight_odd_bytes(from) : eight_bytes(from);
    uint fifth = 0;
    if (type == Q5_0 || type == Q5_1) {
      uint64_t at = block + (type == Q5_0 ? 2 : 4);
      fifth = (half_bits(at) | half_bits(at + 2) << 16) >> 8 * part;
    }
    for (uint i = 0; i < 8; i++) {
      uint n = of_eight(q, i) >> shift & 15;
      if (type == Q4_0) {
        v[i] = d * float(int(n) - 8);
      } else if (type == Q4_1) {
        v[i] = d * float(n) + m;
      } else if (type == Q5_0) {
        v[i] = d * float(int(n | (fifth >> i & 1) << 4) - 16);
      } else if (type == Q5_1) {
        v[i] = d * float(n | (fifth >> i & 1) << 4) + m;
      } else if (type == IQ4_NL) {
        v[i] = d * float(IQ4_NL_VALUES[n]);
      } else {
        v[i] = d * float(MXFP4_VALUES[n]);
      }
    }
  } else if (type == Q2_K || type == Q3_K || type == Q6_K) {
    uint bytes = type == Q2_K ? 84 : type == Q3_K ? 110 : 210;
    uint64_t block = row + uint64_t(unit >> 5) * bytes;
    // Of the 16 sub-blocks of 16 numbers, and where in it the eight begin.
    uint sub = (unit & 31) >> 1, first = (unit & 1) * 8;
    uint64_t pairs = block + (type == Q2_K ? 16 : type == Q3_K ? 32 : 128);
    uvec2 two = eight_bytes(pairs + sub / 8 * 32 + sub % 2 * 16 + first);
    uint shift = sub % 8 / 2 * 2;
    if (type == Q2_K) {
      uint both = byte_at(block + sub);
      float scale = half_at(block + 80) * float(both & 15), minimum = half_at(block + 82) * float(both >> 4);
      for (uint i = 0; i < 8; i++) {
        v[i] = scale * float(of_eight(two, i) >> shift & 3) - minimum;
      }
    } else if (type == Q3_K) {
      float scale = half_at(block + 108) * float(int(q3_scale(block + 96, sub)) - 32);
      uvec2 third = eight_bytes(block + sub % 2 * 16 + first);
      for (uint i = 0; i < 8; i++) {
        uint q = of_eight(two, i) >> shift & 3 | (of_eight(third, i) >> sub / 2 & 1) << 2;
        v[i] = scale * float(int(q) - 4);
      }
    } else {
      float scale = half_at(block + 208) * float(signed_at(block + 192 + sub));
      uvec2 low = eight_bytes(block + sub / 8 * 64 + sub % 4 * 16 + first);
      for (uint i = 0; i < 8; i++) {
        uint q = of_eight(low, i) >> sub % 8 / 4 * 4 & 15 | (of_eight(two, i) >> shift & 3) << 4;
        v[i] = scale * float(int(q) - 32);
      }
    }
  } else if (type == Q4_K || type == Q5_K) {
    uint64_t block = row + uint64_t(unit >> 5) * (type == Q4_K ? 144 : 176);
    // Of the 8 sub-blocks of 32 numbers, and where in it the eight begin.
    uint sub = (unit & 31) >> 2, first = (unit & 3) * 8;
    uvec2 packed = scale_and_minimum(block + 4, sub);
    float scale = half_at(block) * float(packed.x), minimum = half_at(block + 2) * float(packed.y);
    uvec2 low = eight_bytes(block + (type == Q4_K ? 16 : 48) + sub / 2 * 32 + first);
    uvec2 fifth = type == Q5_K ? eight_bytes(block + 16 + first) : uvec2(0);
    for (uint i = 0; i < 8; i++) {
      uint q = of_eight(low, i) >> sub % 2 * 4 & 15 | (of_eight(fifth, i) >> sub & 1) << 4;
      v[i] = scale * float(q) - minimum;
    }
  } else if (type == FP8) {
    float scale = Floats(row).v[unit / 16];
    uvec2 codes = eight_bytes(row + 4 * patches + 8 * unit);
    for (uint i = 0; i < 8; i++) {
      v[i] = scale * e4m3(of_eight(codes, i));
    }
  } else {
    uint j;
    uint64_t block = coded_unit(row + CODED_TABLE + 2 * patches, unit, j);
    uvec2 rest = eight_bytes(block + 24 + j);
    uint zero = byte_at(block + j / 8), one = byte_at(block + 8 + j / 8), two = byte_at(block + 16 + j / 8);
    for (uint i = 0; i < 8; i++) {
      uint code = zero >> i & 1 | (one >> i & 1) << 1 | (two >> i & 1) << 2;
      v[i] = coded_number(of_eight(rest, i), byte_at(row + code));
    }
  }
}

// Whether rows of this type may end within eight numbers.
bool ends_anywhere(uint type) { return type <= BF16 || type == FP8; }

// Number `col` of a row of a plain type.
float plain_number(uint type, uint64_t row, uint col) {
  if (type == F32) {
    return Floats(row).v[col];
  }
  uint bits = uint(Halves(row).v[col]);
  return type == F16 ? unpackHalf2x16(bits).x : uintBitsToFloat(bits << 16);
}

// The same, or one of FP8.
float single_number(uint type, uint64_t row, uint patches, uint col) {
  if (type == FP8) {
    precise float number = Floats(row).v[col / 128] * e4m3(byte_at(row + 4 * patches + col));
    return number;
  }
  return plain_number(type, row, col);
}
