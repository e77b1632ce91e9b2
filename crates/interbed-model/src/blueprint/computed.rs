//! Checks whether Interbed computes everything that a blueprint describes.

use interbed_kernels::TAPS_MAX;

use super::{Attention, Blueprint, KvRows, Norm, Part, Passage, Rope, RopeScaling, ValueSource};

/// The most rotations that a pass computes.
pub(crate) const ROPES_MAX: usize = 2;

/// Fails with the name of something that no layer computes yet.
type Uncomputed = Result<(), &'static str>;

impl Blueprint {
    /// Checks that Interbed can compute everything that this blueprint describes.
    ///
    /// # Errors
    /// Returns the name, in the plural, of the first feature that Interbed cannot compute yet.
    pub fn refuse_uncomputed(&self) -> Uncomputed {
        refuse(self.streams != 1 || self.head.mixer.is_some(), "several residual streams")?;
        refuse(!self.tables.is_empty(), "tables of rows beside the embedding")?;
        refuse(self.head.soft_cap.is_some(), "bounded logits")?;
        refuse(self.ropes.len() > ROPES_MAX, "more than two kinds of rotation")?;
        let is_dynamic = |rope: &Rope| matches!(rope.scaling, RopeScaling::Dynamic { .. });
        refuse(self.ropes.iter().skip(1).any(is_dynamic), "rotations beside the main one that grow with the prompt")?;
        let is_known = |rope: usize| rope < self.ropes.len();
        let rotates = self.attentions().all(|attention| is_known(attention.rope.unwrap_or(0)));
        refuse(!rotates, "rotations that it does not describe")?;
        let growth = self.attentions().next().and_then(|attention| attention.growth);
        refuse(self.attentions().any(|attention| attention.growth != growth), "queries that grow in some layers only")?;
        let mixture = self.mixture();
        refuse(self.mixtures().any(|(_, other)| Some(other) != mixture), "mixtures that differ from layer to layer")?;
        refuse_norm(&self.head.norm)?;
        for layer in &self.layers {
            refuse(layer.has_factor, "learned factors of layers")?;
            for branch in &layer.branches {
                let mut norms = [branch.enter, branch.leave].into_iter().filter_map(|way| way.norm());
                norms.try_for_each(|norm| refuse_norm(&norm))?;
                let is_mixed = [branch.enter, branch.leave].iter().any(|way| matches!(way, Passage::Mixer(_)));
                refuse(is_mixed, "mixers of residual streams")?;
                computed(&branch.part)?;
            }
        }
        refuse(self.attentions().next().is_none(), "models without attention")
    }
}

fn computed(part: &Part) -> Uncomputed {
    match part {
        Part::Attention(attention) => computed_attention(attention),
        Part::Dense(_) => Ok(()),
        Part::Mixture(mixture) => refuse(mixture.router.by_token, "routers that look up experts by token"),
        Part::Latent(_) => Err("latent attentions"),
        Part::GatedDelta(delta) => refuse(delta.convolution > TAPS_MAX, "convolutions of so many rows"),
        Part::Convolution(_) => Err("short convolutions"),
        Part::Table(_) => Err("lookups in tables"),
        Part::Sum(_) => Err("sums of networks"),
    }
}

fn computed_attention(attention: &Attention) -> Uncomputed {
    refuse(attention.value_width != attention.key_width, "values of another width than keys")?;
    refuse(attention.norms_values, "norms of values")?;
    refuse(attention.soft_cap.is_some(), "bounded attention scores")?;
    refuse(attention.values != ValueSource::Projection, "values made from the projection of keys")?;
    refuse(attention.rows != KvRows::Own, "layers that read the keys and values of another")?;
    refuse(attention.selection.is_some(), "selections of keys")
}

fn refuse_norm(norm: &Norm) -> Uncomputed {
    refuse(norm.name.is_empty(), "norms of branches without a weight")
}

fn refuse(has: bool, what: &'static str) -> Uncomputed {
    if has { Err(what) } else { Ok(()) }
}
