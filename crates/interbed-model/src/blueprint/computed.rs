//! Checks whether Interbed computes everything that a blueprint describes.

use interbed_kernels::TAPS_MAX;

use super::{
    Attention, Blueprint, Branch, HeadNorms, InputTable, KvRows, Norm, Part, Passage, Rope, RopeScaling, TableLookup,
    ValueSource,
};

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
        self.refuse_tables()?;
        self.refuse_shared_rows()?;
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
            refuse(layer.has_factor && layer.branches.is_empty(), "factors of layers without branches")?;
            layer.branches.iter().try_for_each(computed_branch)?;
        }
        refuse(self.attentions().next().is_none(), "models without attention")
    }
}

impl Blueprint {
    /// Refuses all tables but one whose rows follow from a token's own id and are joined with a projection.
    fn refuse_tables(&self) -> Uncomputed {
        let joined = |table: &InputTable| table.ids == 1 && table.projection.is_some();
        refuse(self.tables.len() > 1 || !self.tables.iter().all(joined), "such tables of rows beside the embedding")?;
        let fits = |lookup: &TableLookup| {
            let table = self.tables.get(lookup.table);
            table.is_some_and(|table| lookup.row < table.rows && lookup.width == table.width)
        };
        let are_known = self.parts().all(|part| match part {
            Part::Table(lookup) => fits(lookup),
            _ => true,
        });
        refuse(!are_known, "lookups in tables that it does not describe")
    }

    /// Refuses layers that read the keys and values of a layer that keeps none, or others than these, or that come
    /// before a layer that keeps something.
    fn refuse_shared_rows(&self) -> Uncomputed {
        let mut shares = false;
        for part in self.parts() {
            match part {
                Part::Attention(attention) => match attention.rows {
                    KvRows::Of(layer) => {
                        shares = true;
                        let source = self.layers.get(layer).and_then(|layer| match &layer.branches.first()?.part {
                            Part::Attention(source) => Some(source),
                            _ => None,
                        });
                        let fits = source.is_some_and(|source| {
                            source.rows == KvRows::Own
                                && source.kv_shape() == attention.kv_shape()
                                && source.window == attention.window
                        });
                        refuse(!fits, "layers that read keys and values of another kind than theirs")?;
                        refuse(attention.growth.is_some(), "queries that grow beside keys of another layer")?;
                    }
                    KvRows::Own => refuse(shares, "keys and values after layers that read those of another")?,
                },
                other => {
                    refuse(shares && !other.states().is_empty(), "states after layers that read those of another")?
                }
            }
        }
        Ok(())
    }
}

fn computed_branch(branch: &Branch) -> Uncomputed {
    let mut norms = [branch.enter, branch.leave].into_iter().filter_map(|way| way.norm());
    norms.try_for_each(|norm| refuse_norm(&norm))?;
    let is_mixed = [branch.enter, branch.leave].iter().any(|way| matches!(way, Passage::Mixer(_)));
    refuse(is_mixed, "mixers of residual streams")?;
    computed(&branch.part)
}

fn computed(part: &Part) -> Uncomputed {
    match part {
        Part::Attention(attention) => computed_attention(attention),
        Part::Dense(_) => Ok(()),
        Part::Mixture(mixture) => refuse(mixture.router.by_token, "routers that look up experts by token"),
        Part::Latent(_) => Err("latent attentions"),
        Part::GatedDelta(delta) => refuse(delta.convolution > TAPS_MAX, "convolutions of so many rows"),
        Part::Convolution(convolution) => {
            refuse(!(2..=TAPS_MAX).contains(&convolution.rows), "short convolutions of so many rows")
        }
        Part::Mamba(mamba) => refuse(mamba.convolution > TAPS_MAX, "convolutions of so many rows"),
        Part::Table(lookup) => refuse(lookup.convolution.is_some(), "convolutions of rows of tables"),
        Part::Sum(terms) => {
            let is_nested = terms.iter().any(|term| matches!(term.part, Part::Sum(_)));
            refuse(terms.len() != 2 || is_nested, "sums of other than two networks")?;
            terms.iter().try_for_each(computed_branch)
        }
    }
}

fn computed_attention(attention: &Attention) -> Uncomputed {
    refuse(attention.value_width != attention.key_width, "values of another width than keys")?;
    let norms_heads = attention.norms.is_some_and(|norms| norms.over == HeadNorms::EachBefore);
    refuse(attention.norms_values && !norms_heads, "norms of values where heads are not normed")?;
    refuse(attention.soft_cap.is_some(), "bounded attention scores")?;
    let from_keys = attention.values == ValueSource::Keys;
    refuse(from_keys && !attention.norms_values, "values that are the keys, without a norm of their own")?;
    let is_normed_after = attention.norms.is_some_and(|norms| norms.over == HeadNorms::EachAfter);
    refuse(attention.rows != KvRows::Own && is_normed_after, "queries that are normed behind keys of another layer")?;
    refuse(attention.selection.is_some(), "selections of keys")
}

fn refuse_norm(norm: &Norm) -> Uncomputed {
    refuse(norm.name.is_empty(), "norms of branches without a weight")
}

fn refuse(has: bool, what: &'static str) -> Uncomputed {
    if has { Err(what) } else { Ok(()) }
}
