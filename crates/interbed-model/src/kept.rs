//! What the layers of a model keep for a sequence, in groups of equals. Each group has blocks of its own on the device.

use interbed_kernels::{BlockGroups, GroupLayout, KvDType, KvLayout, KvShape, StateLayout, StateShape};

/// The index of the group that has the keys and values of all positions.
pub(crate) const TRUNK: usize = 0;

/// What one layer keeps for each sequence from pass to pass. A later pass need not compute a prefix of a sequence again
/// if every layer has what it keeps for this prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The keys and values of tokens.
    Kv {
        /// Number of key and value heads, and their width.
        shape: KvShape,
        /// How many positions a token sees, itself included; `None` means all. Keys and values of older positions are
        /// not needed.
        window: Option<usize>,
    },
    /// A state of fixed size, which stands for all tokens up to one position. The state of an earlier position cannot
    /// be recovered from it.
    State(StateShape),
    /// Nothing of the layer's own: it reads the keys and values that an earlier layer keeps.
    Shared {
        /// The index of the earlier layer in the model's list of layers, which keeps nothing else.
        layer: usize,
        /// How many positions a token sees, itself included; `None` means all.
        window: Option<usize>,
    },
}

/// A layer's use of the trunk: it attends to keys and values there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrunkUse {
    /// The index, among the layers of the trunk, of the layer that keeps the keys and values.
    pub index: usize,
    /// How many positions a token sees, itself included; `None` means all.
    pub window: Option<usize>,
    /// Whether another layer keeps the keys and values.
    pub is_shared: bool,
}

/// Where a layer finds what it keeps: a group, and the layer's index among the layers of that group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptPlace {
    /// The index of the group.
    pub group: usize,
    /// The index of the layer in its group.
    pub index: usize,
}

/// Layers that keep the same kind of thing, whose keys and values or states lie in the same blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptGroup {
    /// Keys and values.
    Kv {
        /// How many of the last positions the blocks are needed for, if all layers of the group have that window;
        /// `None` if the group has the blocks of all positions.
        window: Option<usize>,
        /// The shape of the keys and values of each layer, and how many positions its tokens see.
        layers: Vec<(KvShape, Option<usize>)>,
    },
    /// States of fixed size, one for each layer.
    States(Vec<StateShape>),
}

impl KeptGroup {
    /// Returns the layout of the group's blocks. Blocks of keys and values hold `block_size` tokens.
    pub fn layout(&self, block_size: usize, dtype: KvDType) -> GroupLayout {
        match self {
            Self::Kv { layers, .. } => KvLayout::new(block_size, dtype, layers.iter().map(|&(shape, _)| shape)).into(),
            Self::States(layers) => StateLayout::new(layers.iter().copied()).into(),
        }
    }
}

/// What all layers of a model keep, in groups. The first group is the *trunk*: keys and values of all positions. It may
/// have no layers. A group for each length of window follows, and at last the states, if there are any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptGroups {
    groups: Vec<KeptGroup>,
    /// The places of what each layer keeps or shares, in the order of the layers.
    places: Vec<Vec<KeptPlace>>,
    /// The uses of the trunk, in the order of the layers.
    uses_of_trunk: Vec<TrunkUse>,
    /// Whether any layer reads the keys and values of another.
    shares: bool,
}

impl KeptGroups {
    /// Groups what layers keep. `layers` is a list for each layer. Layers with windows of the same length form a group
    /// of their own, unless no layer keeps all positions: then the trunk, which would have no layers, has the keys and
    /// values of all of them, those of all positions.
    pub fn new(layers: &[Vec<Kept>]) -> Self {
        let windows_apart = layers.iter().flatten().any(|kept| matches!(kept, Kept::Kv { window: None, .. }));
        let mut groups = vec![KeptGroup::Kv { window: None, layers: Vec::new() }];
        for kept in layers.iter().flatten() {
            if let &Kept::Kv { window: window @ Some(_), .. } = kept
                && windows_apart
                && !groups.iter().any(|group| matches!(group, KeptGroup::Kv { window: of, .. } if *of == window))
            {
                groups.push(KeptGroup::Kv { window, layers: Vec::new() });
            }
        }
        if layers.iter().flatten().any(|kept| matches!(kept, Kept::State(_))) {
            groups.push(KeptGroup::States(Vec::new()));
        }
        let (mut places, mut uses_of_trunk): (Vec<Vec<KeptPlace>>, _) = (Vec::new(), Vec::new());
        for layer in layers {
            let of_layer = layer.iter().map(|kept| {
                let (place, window, is_shared) = match *kept {
                    Kept::Shared { layer, window } => (places[layer][0], window, true),
                    Kept::Kv { window, .. } => (place(&mut groups, kept, windows_apart), window, false),
                    Kept::State(_) => return place(&mut groups, kept, windows_apart),
                };
                if place.group == TRUNK {
                    uses_of_trunk.push(TrunkUse { index: place.index, window, is_shared });
                }
                place
            });
            let of_layer = of_layer.collect();
            places.push(of_layer);
        }
        let shares = layers.iter().flatten().any(|kept| matches!(kept, Kept::Shared { .. }));
        Self { groups, places, uses_of_trunk, shares }
    }

    /// Returns the place of what a layer keeps. `number` is the index in the layer's list.
    ///
    /// # Panics
    /// Panics if there is no such layer, or if the layer keeps no such thing.
    pub fn place(&self, layer: usize, number: usize) -> KeptPlace {
        self.places[layer][number]
    }

    /// Returns the groups, the trunk first.
    pub fn groups(&self) -> &[KeptGroup] {
        &self.groups
    }

    /// Returns the uses of the trunk, in the order in which the layers of a pass make them.
    pub fn uses_of_trunk(&self) -> &[TrunkUse] {
        &self.uses_of_trunk
    }

    /// Returns whether some layer reads the keys and values of another.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Returns the blocks of a device that has `counts[g]` blocks of group `g`. Blocks of keys and values hold
    /// `block_size` tokens.
    ///
    /// # Panics
    /// Panics if there are not as many counts as groups.
    pub fn blocks(&self, block_size: usize, dtype: KvDType, counts: &[usize]) -> BlockGroups {
        assert_eq!(counts.len(), self.groups.len(), "a number of blocks for each group");
        let mut layouts = self.groups.iter().map(|group| group.layout(block_size, dtype)).zip(counts);
        let Some((GroupLayout::Kv(trunk), &count)) = layouts.next() else { unreachable!("the trunk is first") };
        layouts.fold(BlockGroups::new(trunk, count), |blocks, (layout, &count)| blocks.with(layout, count))
    }
}

/// Adds a layer to the group that it belongs to, and returns its place there.
fn place(groups: &mut [KeptGroup], kept: &Kept, windows_apart: bool) -> KeptPlace {
    for (group, members) in groups.iter_mut().enumerate() {
        match (members, kept) {
            (KeptGroup::Kv { window: of, layers }, &Kept::Kv { shape, window })
                if *of == window.filter(|_| windows_apart) =>
            {
                layers.push((shape, window));
                return KeptPlace { group, index: layers.len() - 1 };
            }
            (KeptGroup::States(layers), Kept::State(shape)) => {
                layers.push(*shape);
                return KeptPlace { group, index: layers.len() - 1 };
            }
            _ => {}
        }
    }
    unreachable!("there is a group for everything that a layer keeps")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KV: KvShape = KvShape { num_kv_heads: 2, head_dim: 8 };
    const STATE: StateShape = StateShape { rows: 3, channels: 12, heads: 2, key_width: 4, value_width: 2 };

    fn kv(window: Option<usize>) -> Kept {
        Kept::Kv { shape: KV, window }
    }

    /// Layers that keep nothing, one thing, or two.
    fn layers() -> Vec<Vec<Kept>> {
        let state = Kept::State(STATE);
        vec![
            vec![],
            vec![kv(Some(8))],
            vec![state],
            vec![kv(None)],
            vec![kv(Some(4))],
            vec![state, kv(Some(8))],
            vec![kv(None)],
        ]
    }

    #[test]
    fn equals_form_a_group_and_states_are_last() {
        let groups = KeptGroups::new(&layers());
        let of = |window, count| KeptGroup::Kv { window, layers: vec![(KV, window); count] };
        assert_eq!(groups.groups(), [of(None, 2), of(Some(8), 2), of(Some(4), 1), KeptGroup::States(vec![STATE; 2])]);
        let place = |layer, number| (groups.place(layer, number).group, groups.place(layer, number).index);
        let places = [place(1, 0), place(2, 0), place(3, 0), place(4, 0), place(5, 0), place(5, 1), place(6, 0)];
        assert_eq!(places, [(1, 0), (3, 0), (0, 0), (2, 0), (3, 1), (1, 1), (0, 1)]);
        let blocks = groups.blocks(4, KvDType::F32, &[5, 2, 3, 1]);
        let numbers: Vec<_> = blocks.groups().iter().map(|group| group.numbers()).collect();
        assert_eq!(numbers, [0..5, 5..7, 7..10, 10..11]);
        assert_eq!((blocks.kv(1).num_layers(), blocks.states(3).num_layers()), (2, 2));
    }

    #[test]
    fn windows_alone_are_in_the_trunk() {
        let alone = KeptGroups::new(&[vec![kv(Some(8))], vec![Kept::State(STATE)], vec![kv(Some(4))]]);
        let trunk = KeptGroup::Kv { window: None, layers: vec![(KV, Some(8)), (KV, Some(4))] };
        assert_eq!(alone.groups(), [trunk, KeptGroup::States(vec![STATE])]);
        let uses = |index, window| TrunkUse { index, window, is_shared: false };
        assert_eq!(alone.uses_of_trunk(), [uses(0, Some(8)), uses(1, Some(4))]);
        assert_eq!(alone.place(2, 0), KeptPlace { group: 0, index: 1 });
    }

    #[test]
    fn layers_that_share_are_where_others_keep() {
        let shared = |layer, window| vec![Kept::Shared { layer, window }];
        let layers = [vec![], vec![kv(Some(8))], vec![kv(None)], vec![kv(None)], shared(1, Some(8)), shared(3, None)];
        let groups = KeptGroups::new(&layers);
        assert_eq!(groups.groups().len(), 2);
        assert_eq!(groups.place(4, 0), groups.place(1, 0));
        assert_eq!(groups.place(5, 0), KeptPlace { group: 0, index: 1 });
        let uses = |index, is_shared| TrunkUse { index, window: None, is_shared };
        assert_eq!(groups.uses_of_trunk(), [uses(0, false), uses(1, false), uses(1, true)]);
        assert!(groups.shares() && !KeptGroups::new(&layers[..4]).shares());
    }
}
