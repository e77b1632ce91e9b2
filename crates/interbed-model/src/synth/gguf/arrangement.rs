//! Where GGUF files have the rows and columns of the safetensors, and what converters do to the values.

use interbed_kernels::RopeStyle;

use crate::blueprint::{Blueprint, GatedDelta, Part};
use crate::synth::norm_offset;

/// How a tensor of a GGUF file is made from that of the safetensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrangement {
    rows: Order,
    columns: Order,
    change: Change,
    /// Whether the elements of a vector are arranged as rows are.
    pub(super) is_column: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    Same,
    /// The two rows of each head whose outputs are rotated together are neighbours. The number is how many rows a head
    /// has.
    Neighbours(usize),
    /// Value heads go through the key heads in turns, instead of those of one key head following each other.
    Turns {
        first: usize,
        key_heads: usize,
        value_heads: usize,
        width: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    Nothing,
    Add(f32),
    NegativeExponential,
}

impl Arrangement {
    /// Returns the arrangement of the tensor `name`, which has `rows` rows, in files whose readers rotate elements of
    /// heads by `style`.
    pub(super) fn of(blueprint: &Blueprint, style: RopeStyle, name: &str, rows: usize) -> Self {
        let plain = Self { rows: Order::Same, columns: Order::Same, change: Change::Nothing, is_column: false };
        let attention = blueprint.attentions().next();
        let rotated = [
            (".self_attn.q_proj.", attention.map(|of| of.heads)),
            (".self_attn.k_proj.", attention.map(|of| of.kv_heads)),
        ];
        if style == RopeStyle::Neighbours
            && let Some((_, Some(heads))) = rotated.into_iter().find(|(part, _)| name.contains(part))
        {
            return Self { rows: Order::Neighbours(rows / heads), is_column: true, ..plain };
        }
        let offset = norm_offset(blueprint, name);
        if offset != 0.0 {
            return Self { change: Change::Add(offset), ..plain };
        }
        let deltas = blueprint.parts().find_map(|part| match part {
            Part::GatedDelta(delta) => Some(*delta),
            _ => None,
        });
        if name.ends_with(".mamba.A_log") {
            return Self { change: Change::NegativeExponential, ..plain };
        }
        match (deltas, name.split_once(".linear_attn.")) {
            (Some(delta), Some((_, part))) => Self::of_delta(plain, &delta, part),
            _ => plain,
        }
    }

    fn of_delta(plain: Self, delta: &GatedDelta, part: &str) -> Self {
        let turns = |first: usize, width: usize| {
            let GatedDelta { key_heads, value_heads, .. } = *delta;
            Order::Turns { first, key_heads, value_heads, width }
        };
        let each = Self { rows: turns(0, 1), is_column: true, ..plain };
        match part {
            "in_proj_qkv.weight" | "conv1d.weight" => {
                Self { rows: turns(2 * delta.keys_width(), delta.value_width), ..plain }
            }
            "in_proj_z.weight" => Self { rows: turns(0, delta.value_width), ..plain },
            "out_proj.weight" => Self { columns: turns(0, delta.value_width), ..plain },
            "in_proj_a.weight" | "in_proj_b.weight" => Self { is_column: false, ..each },
            "dt_bias" => each,
            "A_log" => Self { change: Change::NegativeExponential, ..each },
            _ => plain,
        }
    }

    /// Returns which row of the safetensors becomes row `row` of the GGUF file.
    pub(super) fn source(&self, row: usize) -> usize {
        self.rows.source(row)
    }

    /// Turns a row of the safetensors into that of the GGUF file.
    pub(super) fn convert(&self, values: &mut [f32]) {
        if self.columns != Order::Same {
            let old = values.to_vec();
            values.iter_mut().enumerate().for_each(|(column, value)| *value = old[self.columns.source(column)]);
        }
        match self.change {
            Change::Nothing => {}
            Change::Add(number) => values.iter_mut().for_each(|value| *value += number),
            Change::NegativeExponential => values.iter_mut().for_each(|value| *value = -value.exp()),
        }
    }
}

impl Order {
    fn source(self, index: usize) -> usize {
        match self {
            Self::Same => index,
            Self::Neighbours(rows) => {
                let (head, within) = (index / rows, index % rows);
                head * rows + within % 2 * (rows / 2) + within / 2
            }
            Self::Turns { first, key_heads, value_heads, width } if index >= first => {
                let (head, within) = ((index - first) / width, (index - first) % width);
                let (turn, key_head) = (head / key_heads, head % key_heads);
                first + (key_head * (value_heads / key_heads) + turn) * width + within
            }
            Self::Turns { .. } => index,
        }
    }
}
