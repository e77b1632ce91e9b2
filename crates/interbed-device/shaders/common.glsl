// What all kernels share: memory by address, and numbers of every type that weights have.
//
// Addresses are 64-bit, in push constants. All reads of weights are at whatever alignment their type has.

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_control_flow_attributes : require

layout(buffer_reference, std430, buffer_reference_align = 1) buffer Bytes { uint8_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Addresses { uint64_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Fours { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer WordFours { uvec4 v[]; };

float bf16_low(uint pair) { return uintBitsToFloat(pair << 16); }
float bf16_high(uint pair) { return uintBitsToFloat(pair & 0xffff0000u); }
