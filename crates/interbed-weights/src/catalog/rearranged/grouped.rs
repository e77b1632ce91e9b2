//! Presents the inputs of delta rules that files hold grouped by key heads as matrices of their own.
//!
//! | in files, for each key head | here |
//! |---|---|
//! | `linear_attn.in_proj_qkvz.weight`: query, key, and values and gates of its value heads | `…qkv`, `…z` |
//! | `linear_attn.in_proj_ba.weight` (`ssm_ba.weight`): strengths and steps of its value heads | `…b`, `…a` |
//!
//! How many heads there are follows from the shapes of other tensors of the layer, where keys are as wide as values.

use std::collections::{HashMap, HashSet};

use interbed_io::DIRECT_ALIGN;

use super::{Arrangement, Origin, Part, Place, Rearranged};
use crate::catalog::CatalogEntry;
use crate::safetensors::ElementType;

/// The names within a layer that tell the heads: of the rates, of the norm of results, and of the convolution.
struct Naming {
    prefix: &'static str,
    qkvz: &'static str,
    ba: &'static str,
    rates: &'static str,
    norm: &'static str,
    taps: &'static str,
}

const NAMINGS: [Naming; 2] = [
    Naming {
        prefix: "model.layers.",
        qkvz: "linear_attn.in_proj_qkvz.weight",
        ba: "linear_attn.in_proj_ba.weight",
        rates: "linear_attn.A_log",
        norm: "linear_attn.norm.weight",
        taps: "linear_attn.conv1d.weight",
    },
    Naming {
        prefix: "blk.",
        qkvz: "ssm_in.weight",
        ba: "ssm_ba.weight",
        rates: "ssm_a",
        norm: "ssm_norm.weight",
        taps: "ssm_conv1d.weight",
    },
];

/// Heads of a layer.
struct Heads {
    keys: usize,
    /// Number of value heads of each key head.
    values_each: usize,
    width: usize,
}

/// A matrix here: its name, and where the rows of each of its parts begin in a group, and how many of them a group has.
type Cut<'a> = (&'a str, Vec<(usize, usize)>);

/// Takes grouped tensors out of `entries`, and adds the matrices that they consist of to `found` and `arrangement`,
/// which is that of file number `file`. Tensors whose shapes do not fit stay; loading will report what is missing.
pub(super) fn take(
    entries: &mut Vec<(String, CatalogEntry)>,
    file: usize,
    found: &mut Vec<Rearranged>,
    arrangement: &mut Arrangement,
) {
    let by_name: HashMap<&str, &CatalogEntry> = entries.iter().map(|(name, entry)| (name.as_str(), entry)).collect();
    let mut used = HashSet::new();
    for (name, entry) in entries.iter() {
        let Some((naming, layer, within)) = grouped(name) else { continue };
        let Some(heads) = heads(naming, layer, &by_name) else { continue };
        let Heads { values_each, width, .. } = heads;
        let (shared, values) = (2 * width, values_each * width);
        let cuts: Vec<Cut<'_>> = match within == naming.qkvz {
            true => vec![
                ("qkv", vec![(0, width), (width, width), (shared, values)]),
                ("z", vec![(shared + values, values)]),
            ],
            false => vec![("b", vec![(0, values_each)]), ("a", vec![(values_each, values_each)])],
        };
        let here = format!("model.layers.{layer}.linear_attn.in_proj_");
        if add(entry, heads.keys, &cuts, (name, &here, file), (found, arrangement)).is_some() {
            used.insert(name.clone());
        }
    }
    entries.retain(|(name, _)| !used.contains(name));
}

/// Returns the naming of a grouped tensor, the number of its layer and its name within the layer.
fn grouped(name: &str) -> Option<(&'static Naming, &str, &str)> {
    NAMINGS.iter().find_map(|naming| {
        let (layer, within) = name.strip_prefix(naming.prefix)?.split_once('.')?;
        let is_grouped = within == naming.qkvz || within == naming.ba;
        (is_grouped && layer.parse::<u32>().is_ok()).then_some((naming, layer, within))
    })
}

fn heads(naming: &Naming, layer: &str, by_name: &HashMap<&str, &CatalogEntry>) -> Option<Heads> {
    let first = |within: &str| {
        let name = format!("{}{layer}.{within}", naming.prefix);
        by_name.get(name.as_str()).and_then(|entry| entry.shape.first().copied())
    };
    let (values, width, channels) = (first(naming.rates)?, first(naming.norm)?, first(naming.taps)?);
    let both = channels.checked_sub(values.checked_mul(width)?)?;
    let is_whole = width > 0 && both > 0 && both.is_multiple_of(2 * width);
    let keys = is_whole.then(|| both / (2 * width))?;
    (values > 0 && values.is_multiple_of(keys)).then(|| Heads { keys, values_each: values / keys, width })
}

/// Adds the matrices of a grouped tensor. Returns `None`, and adds nothing, if its shape or type does not fit.
fn add(
    entry: &CatalogEntry,
    groups: usize,
    cuts: &[Cut<'_>],
    (in_file, here, file): (&str, &str, usize),
    (found, arrangement): (&mut Vec<Rearranged>, &mut Arrangement),
) -> Option<()> {
    let &[rows, cols] = entry.shape.as_slice() else { return None };
    let ElementType::Known(dtype) = entry.element_type else { return None };
    let row_bytes = dtype.row_bytes(cols)?;
    let group_rows: usize = cuts.iter().flat_map(|(_, parts)| parts).map(|(_, rows)| rows).sum();
    let fits = group_rows.checked_mul(groups) == Some(rows) && entry.bytes == rows.checked_mul(row_bytes)? as u64;
    if !fits || entry.scales.is_some() {
        return None;
    }
    for (matrix, parts) in cuts {
        arrangement.len = arrangement.len.checked_next_multiple_of(DIRECT_ALIGN as u64)?;
        let (offset, mut all) = (arrangement.len, 0);
        for &(skip, run) in parts {
            let place = Place { file: entry.file, offset: entry.offset + (skip * row_bytes) as u64 };
            let from = Origin::Grouped { place, run, group_rows };
            let rows = groups * run;
            all += rows;
            arrangement.push(Part { begin: arrangement.len, woven: 1, rows, cols, row_bytes, from })?;
        }
        let entry = CatalogEntry {
            file,
            offset,
            bytes: (all * row_bytes) as u64,
            shape: vec![all, cols],
            element_type: entry.element_type.clone(),
            scales: None,
        };
        found.push(Rearranged { name: format!("{here}{matrix}.weight"), in_file: in_file.to_owned(), entry });
    }
    Some(())
}
