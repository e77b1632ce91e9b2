//! Blueprints of models that no layer computes yet: the vocabulary has words for each of them.

use interbed_kernels::{KvShape, RopeStyle};

use super::*;
use crate::config::ModelConfig;
use crate::preset;

const EPSILON: f32 = 1e-6;

fn norm(name: &'static str, offset: f32) -> Norm {
    Norm { name, epsilon: EPSILON, offset }
}

fn before(name: &'static str) -> Passage {
    Passage::Norm(norm(name, 0.0))
}

fn rope(theta: f64, scaling: RopeScaling, rotated: usize) -> Rope {
    Rope::new(theta, scaling, rotated)
}

/// Attention as most models have it.
fn attention([heads, kv_heads, width]: [usize; 3]) -> Attention {
    Attention {
        heads,
        kv_heads,
        key_width: width,
        value_width: width,
        input_bias: false,
        output_bias: false,
        norms: Some(NormsOfHeads { over: HeadNorms::EachBefore, epsilon: EPSILON, offset: 0.0 }),
        norms_values: false,
        rope: Some(0),
        scale: (width as f32).sqrt().recip(),
        growth: None,
        window: None,
        sinks: false,
        soft_cap: None,
        output_gate: false,
        values: ValueSource::Projection,
        rows: KvRows::Own,
        selection: None,
    }
}

fn dense(width: usize, activation: Activation) -> Part {
    Part::Dense(Dense { width, activation, gated: true, bias: false })
}

fn router(scores: Scores) -> Router {
    Router {
        scores,
        choice_bias: false,
        groups: None,
        normalise: Some(Floor::Plus(0.0)),
        scale: 1.0,
        own_norm: None,
        expert_factors: false,
        by_token: false,
    }
}

fn mixture([experts, chosen, expert_width]: [usize; 3], router: Router, shared: Option<SharedExpert>) -> Mixture {
    Mixture { experts, chosen, expert_width, activation: Activation::Silu, router, gated: true, biases: false, shared }
}

/// A branch with a norm before it.
fn branch(name: &'static str, part: Part) -> Branch {
    Branch { enter: before(name), part, leave: Passage::Direct, factor: 1.0 }
}

fn layer(branches: Vec<Branch>) -> DecoderLayer {
    DecoderLayer { branches, has_factor: false }
}

fn model([vocab_size, hidden_size, context]: [usize; 3], ropes: Vec<Rope>, layers: Vec<DecoderLayer>) -> Blueprint {
    Blueprint {
        vocab_size,
        hidden_size,
        positions: context,
        context,
        streams: 1,
        tables: Vec::new(),
        embedding_factor: 1.0,
        ropes,
        layers,
        head: Head { mixer: None, norm: norm("model.norm", 0.0), divisor: 1.0, soft_cap: None, is_tied: false },
    }
}

/// The states of all layers that are alike, with how many of each there are.
fn states(blueprint: &Blueprint) -> Vec<(State, usize)> {
    let mut counted: Vec<(State, usize)> = Vec::new();
    for state in blueprint.layers.iter().flat_map(|layer| &layer.branches).flat_map(|branch| branch.part.states()) {
        match counted.iter_mut().find(|(known, _)| *known == state) {
            Some((_, count)) => *count += 1,
            None => counted.push((state, 1)),
        }
    }
    counted
}

fn kv(num_kv_heads: usize, head_dim: usize, window: Option<usize>) -> State {
    State::Kv { shape: KvShape { num_kv_heads, head_dim }, window }
}

fn gemma_3_27b() -> Blueprint {
    let ropes = vec![rope(1e6, RopeScaling::Linear { factor: 8.0 }, 128), rope(10_000.0, RopeScaling::Default, 128)];
    let both = |[before, after]: [&'static str; 2], part: Part| Branch {
        enter: Passage::Norm(norm(before, 1.0)),
        part,
        leave: Passage::Norm(norm(after, 1.0)),
        factor: 1.0,
    };
    let layers = (1..=62_usize).map(|number| {
        let is_global = number.is_multiple_of(6);
        let attention = Attention {
            norms: Some(NormsOfHeads { over: HeadNorms::EachBefore, epsilon: EPSILON, offset: 1.0 }),
            scale: 168f32.sqrt().recip(),
            rope: Some(usize::from(!is_global)),
            window: (!is_global).then_some(1024),
            ..attention([32, 16, 128])
        };
        layer(vec![
            both(["input_layernorm", "post_attention_layernorm"], Part::Attention(attention)),
            both(["pre_feedforward_layernorm", "post_feedforward_layernorm"], dense(21_504, Activation::GeluTanh)),
        ])
    });
    let layers = layers.collect();
    let mut model = model([262_208, 5376, 131_072], ropes, layers);
    (model.embedding_factor, model.head.norm.offset, model.head.is_tied) = (5376f32.sqrt(), 1.0, true);
    model
}

#[test]
fn gemma_3_has_two_norms_a_branch_and_two_ropes() {
    let gemma = gemma_3_27b();
    assert_eq!(states(&gemma), [(kv(16, 128, Some(1024)), 52), (kv(16, 128, None), 10)]);
    assert_eq!(gemma.windows()[5], None);
    let published = ModelConfig::from_json(&preset("gemma-3-27b").unwrap()).unwrap().blueprint;
    assert!(Blueprint { vocab_size: 262_208, ..published } == gemma, "the published configuration says the same");
}

#[test]
fn gemma_4_shares_rows_between_layers_and_looks_up_rows_of_tokens() {
    let factors = (0..256).map(|pair| if pair < 64 { 1.0 } else { f32::INFINITY }).collect();
    let full = Rope { factors: Some(factors), ..rope(1e6, RopeScaling::Default, 512) };
    let ropes = vec![full, rope(10_000.0, RopeScaling::Default, 256)];
    let is_full = |number: usize| (number + 1).is_multiple_of(6);
    let of_layer = |number: usize| {
        let (width, window) = if is_full(number) { (512, None) } else { (256, Some(512)) };
        let rows = match number {
            24.. => KvRows::Of(if is_full(number) { 23 } else { 22 }),
            _ => KvRows::Own,
        };
        let norms = Some(NormsOfHeads { over: HeadNorms::EachBefore, epsilon: EPSILON, offset: 0.0 });
        let rope = Some(usize::from(!is_full(number)));
        Attention { window, rope, rows, scale: 1.0, norms, norms_values: true, ..attention([8, 2, width]) }
    };
    let both = |name, part: Part, after| Branch { leave: before(after), ..branch(name, part) };
    let layers = (0..42).map(|row| {
        let (width, activation) = (256, Activation::GeluTanh);
        let of_table = Part::Table(TableLookup { table: 0, row, width, activation, convolution: None });
        let branches = vec![
            both("input_layernorm", Part::Attention(of_layer(row)), "post_attention_layernorm"),
            both("pre_feedforward_layernorm", dense(10_240, activation), "post_feedforward_layernorm"),
            Branch { enter: Passage::Direct, ..both("", of_table, "post_per_layer_input_norm") },
        ];
        DecoderLayer { branches, has_factor: true }
    });
    let projection = RowProjection {
        factor: 2560f64.sqrt().recip() as f32,
        norm: norm("per_layer_projection_norm", 0.0),
        sum_factor: 0.5f64.sqrt() as f32,
    };
    let mut gemma = Blueprint {
        tables: vec![InputTable { rows: 42, width: 256, factor: 16.0, ids: 1, projection: Some(projection) }],
        embedding_factor: 2560f64.sqrt() as f32,
        ..model([262_144, 2560, 131_072], ropes, layers.collect())
    };
    (gemma.head.soft_cap, gemma.head.is_tied) = (Some(30.0), true);
    let of_its_own: usize =
        states(&gemma).iter().filter(|(state, _)| matches!(state, State::Kv { .. })).map(|(_, n)| n).sum();
    assert_eq!(of_its_own, 24);
    assert!(states(&gemma).contains(&(State::SharedKv { layer: 23 }, 3)));
    let published = ModelConfig::from_json(&preset("gemma-4-e4b").unwrap()).unwrap().blueprint;
    assert!(published == gemma, "the published configuration says the same");
    let changed = |change: &dyn Fn(&mut Blueprint)| {
        let mut blueprint = gemma.clone();
        change(&mut blueprint);
        blueprint.refuse_uncomputed()
    };
    let attention = |layer: usize, change: &'static dyn Fn(&mut Attention)| {
        changed(&move |blueprint| match &mut blueprint.layers[layer].branches[0].part {
            Part::Attention(attention) => change(attention),
            _ => unreachable!("attention comes first"),
        })
    };
    assert_eq!(gemma.refuse_uncomputed(), Ok(()));
    assert!(attention(30, &|attention| attention.rows = KvRows::Own).unwrap_err().contains("after layers"));
    for wrong in [23, 24, 50] {
        let refused = changed(&move |blueprint| match &mut blueprint.layers[40].branches[0].part {
            Part::Attention(attention) => attention.rows = KvRows::Of(wrong),
            _ => unreachable!("attention comes first"),
        });
        assert!(refused.unwrap_err().contains("of another kind"), "{wrong}");
    }
    assert!(attention(3, &|attention| attention.norms = None).unwrap_err().contains("norms of values"));
    assert!(
        attention(3, &|attention| (attention.values, attention.norms_values) = (ValueSource::Keys, false))
            .unwrap_err()
            .contains("without a norm")
    );
    assert!(changed(&|blueprint| blueprint.tables[0].rows = 41).unwrap_err().contains("does not describe"));
    assert!(changed(&|blueprint| blueprint.tables[0].ids = 2).unwrap_err().contains("such tables"));
    // The mixture of its larger sister is added to a dense network, each with norms of its own.
    let sum = Part::Sum(vec![
        branch("pre_feedforward_layernorm", dense(2112, Activation::GeluTanh)),
        branch("pre_feedforward_layernorm_2", Part::Mixture(mixture([128, 8, 704], router(Scores::Softmax), None))),
    ]);
    let sister =
        model([262_144, 2816, 262_144], gemma.ropes, vec![layer(vec![branch("pre_feedforward_layernorm", sum)])]);
    assert_eq!((sister.mixtures().count(), sister.refuse_uncomputed()), (1, Err("models without attention")));
}

/// Three layers of the delta rule for each of attention.
fn qwen_layers(count: usize, delta: GatedDelta, attention: &Attention, network: &Mixture) -> Vec<DecoderLayer> {
    let layers = (1..=count).map(|number| {
        let first = match number.is_multiple_of(4) {
            true => Part::Attention(attention.clone()),
            false => Part::GatedDelta(delta),
        };
        layer(vec![
            branch("input_layernorm", first),
            branch("post_attention_layernorm", Part::Mixture(network.clone())),
        ])
    });
    layers.collect()
}

fn delta(value_heads: usize) -> GatedDelta {
    let norm = norm("linear_attn.norm", 0.0);
    let (sharing, decay, epsilon) = (KeySharing::Neighbours, DecayForm::Logarithm, EPSILON);
    let (key_heads, key_width, value_width, convolution) = (16, 128, 128, 4);
    GatedDelta { key_heads, value_heads, key_width, value_width, sharing, decay, epsilon, convolution, norm }
}

#[test]
fn a_layer_of_qwen_3_6_keeps_two_states() {
    let attention = Attention { output_gate: true, ..attention([16, 2, 256]) };
    let shared = Some(SharedExpert { width: 512, gated: true });
    let network = mixture([256, 8, 512], router(Scores::Softmax), shared);
    let layers = qwen_layers(40, delta(32), &attention, &network);
    let qwen = model([248_320, 2048, 262_144], vec![rope(1e7, RopeScaling::Default, 64)], layers);
    let matrix = State::Matrix { heads: 32, key_width: 128, value_width: 128 };
    assert_eq!(states(&qwen), [(matrix, 30), (State::LastRows { rows: 3, width: 8192 }, 30), (kv(2, 256, None), 10)]);
    assert_eq!(qwen.refuse_uncomputed(), Ok(()));
}

#[test]
fn a_row_of_deepseek_3_is_key_and_value_at_once() {
    let latent = LatentAttention {
        heads: 128,
        query_rank: Some(1536),
        row_width: 512,
        rotated: 64,
        key_width: 128,
        value_width: 128,
        rope: 0,
        scale: 192f32.sqrt().recip() * (0.1 * 40f32.ln() + 1.0).powi(2),
        window: None,
        sinks: false,
        output_groups: 1,
        compressed: None,
    };
    let groups = Some(Groups { count: 8, kept: 4 });
    let router = Router { choice_bias: true, groups, scale: 2.5, ..router(Scores::Sigmoid) };
    let network = mixture([256, 8, 2048], router, Some(SharedExpert { width: 2048, gated: false }));
    let layers = (0..61).map(|number| {
        let network = if number < 3 { dense(18_432, Activation::Silu) } else { Part::Mixture(network.clone()) };
        layer(vec![
            branch("input_layernorm", Part::Latent(latent.clone())),
            branch("post_attention_layernorm", network),
        ])
    });
    let mut yarn = rope(10_000.0, RopeScaling::Default, 64);
    yarn.style = RopeStyle::Neighbours;
    let deepseek = model([129_280, 7168, 163_840], vec![yarn], layers.collect());
    assert_eq!(states(&deepseek), [(State::LatentRows { width: 576, window: None }, 61)]);
    assert_eq!((deepseek.mixtures().count(), deepseek.refuse_uncomputed()), (58, Err("latent attentions")));
}

#[test]
fn a_layer_of_lfm2_keeps_a_few_rows() {
    let full = [2, 5, 8, 10, 12, 14];
    let layers = (0..16).map(|number| {
        let first = match full.contains(&number) {
            true => Part::Attention(attention([32, 8, 64])),
            false => Part::Convolution(ShortConvolution { rows: 3, width: 2048, bias: false }),
        };
        layer(vec![branch("operator_norm", first), branch("ffn_norm", dense(8192, Activation::Silu))])
    });
    let lfm = model([65_536, 2048, 128_000], vec![rope(1e6, RopeScaling::Default, 64)], layers.collect());
    assert_eq!(states(&lfm), [(State::LastRows { rows: 2, width: 2048 }, 10), (kv(8, 64, None), 6)]);
}

#[test]
fn what_layers_would_compute_wrongly_is_refused() {
    let plain = || {
        let of = |experts| {
            layer(vec![
                branch("input_layernorm", Part::Attention(attention([4, 2, 8]))),
                branch(
                    "post_attention_layernorm",
                    Part::Mixture(mixture([experts, 2, 16], router(Scores::Softmax), None)),
                ),
            ])
        };
        model([100, 32, 64], vec![rope(10_000.0, RopeScaling::Default, 8)], vec![of(4), of(4)])
    };
    assert_eq!(plain().refuse_uncomputed(), Ok(()));
    let changed = |change: &dyn Fn(&mut Blueprint)| {
        let mut blueprint = plain();
        change(&mut blueprint);
        blueprint.refuse_uncomputed().unwrap_err()
    };
    let of_last =
        |blueprint: &mut Blueprint, change: &dyn Fn(&mut Part)| change(&mut blueprint.layers[1].branches[0].part);
    let attention = |change: &'static dyn Fn(&mut Attention)| {
        changed(&|blueprint| {
            of_last(blueprint, &|part| {
                if let Part::Attention(attention) = part {
                    change(attention)
                }
            })
        })
    };
    assert!(attention(&|attention| attention.rope = Some(1)).contains("does not describe"));
    assert!(
        attention(&|attention| attention.growth = Some(QueryGrowth { beta: 0.1, length: 8 })).contains("some layers")
    );
    assert!(changed(&|blueprint| blueprint.ropes.clear()).contains("does not describe"));
    let dynamic = RopeScaling::Dynamic { factor: 2.0, original_max: 32 };
    assert!(changed(&|blueprint| blueprint.ropes.push(rope(1e6, dynamic.clone(), 8))).contains("grow with the prompt"));
    let other = changed(&|blueprint| {
        if let Part::Mixture(mixture) = &mut blueprint.layers[1].branches[1].part {
            mixture.experts = 8;
        }
    });
    assert!(other.contains("differ"), "{other}");
}

fn mixer(rank: Option<usize>, rounds: usize) -> StreamMixer {
    StreamMixer { streams: 4, rank, rounds, norm: norm("", 0.0) }
}

#[test]
fn flash_next_has_four_streams_and_selects_keys() {
    let selection = KeySelection { heads: 8, width: 128, group: 4, chosen: 512 };
    let attention = Attention { output_gate: true, selection: Some(selection), ..attention([16, 2, 256]) };
    let shared = Some(SharedExpert { width: 640, gated: true });
    let network = mixture([512, 10, 640], router(Scores::Softmax), shared);
    let mut layers = qwen_layers(48, delta(48), &attention, &network);
    for branch in layers.iter_mut().flat_map(|layer| &mut layer.branches) {
        (branch.enter, branch.leave) = (Passage::Mixer(mixer(Some(320), 0)), Passage::Mixer(mixer(Some(320), 0)));
    }
    let table =
        TableLookup { table: 0, row: 0, width: 4 * 2560, activation: Activation::Sigmoid, convolution: Some((4, 3)) };
    let of_table = Branch {
        enter: Passage::Mixer(mixer(Some(320), 0)),
        part: Part::Table(table),
        leave: Passage::Mixer(mixer(Some(320), 0)),
        factor: 1.0,
    };
    layers[1].branches.insert(0, of_table);
    let plain = model([248_320, 2560, 262_144], vec![rope(1e7, RopeScaling::Default, 64)], layers);
    let next = Blueprint {
        streams: 4,
        tables: vec![InputTable { rows: 16, width: 160, factor: 1.0, ids: 3, projection: None }],
        head: Head { mixer: Some(mixer(Some(320), 0)), ..plain.head },
        ..plain
    };
    let found = states(&next);
    for expected in [
        (kv(2, 256, None), 12),
        (State::CompressedRows { width: 128, rate: 4 }, 12),
        (State::Matrix { heads: 48, key_width: 128, value_width: 128 }, 36),
        (State::LastRows { rows: 9, width: 10_240 }, 1),
    ] {
        assert!(found.contains(&expected), "{expected:?} in {found:?}");
    }
    // The last two of three token ids come from earlier passes.
    assert_eq!(next.tables[0].state(), Some(State::LastTokens { count: 2 }));
    assert_eq!(next.refuse_uncomputed(), Err("several residual streams"));
}

#[test]
fn deepseek_4_compresses_rows_and_looks_experts_up() {
    let index = KeySelection { heads: 64, width: 128, group: 1, chosen: 512 };
    let compressed = |number: usize| match number {
        0 | 1 => None,
        _ if number.is_multiple_of(2) => {
            Some(CompressedRows { rate: 4, overlaps: true, selection: Some(KeySelection { group: 4, ..index }) })
        }
        _ => Some(CompressedRows { rate: 128, overlaps: false, selection: None }),
    };
    let layers = (0..43).map(|number| {
        let latent = LatentAttention {
            heads: 64,
            query_rank: Some(1024),
            row_width: 448,
            rotated: 64,
            key_width: 448,
            value_width: 512,
            rope: 0,
            scale: 512f32.sqrt().recip(),
            window: Some(128),
            sinks: true,
            output_groups: 8,
            compressed: compressed(number),
        };
        let by_token = number < 3;
        let router = Router { by_token, choice_bias: !by_token, scale: 1.5, ..router(Scores::RootOfSoftplus) };
        let network = mixture([256, 6, 2048], router, Some(SharedExpert { width: 2048, gated: false }));
        let mixed = |part: Part| Branch {
            enter: Passage::Mixer(mixer(None, 20)),
            part,
            leave: Passage::Mixer(mixer(None, 20)),
            factor: 1.0,
        };
        layer(vec![mixed(Part::Latent(latent)), mixed(Part::Mixture(network))])
    });
    let ropes = vec![rope(10_000.0, RopeScaling::Default, 64), rope(160_000.0, RopeScaling::Default, 64)];
    let deepseek = Blueprint { streams: 4, ..model([129_280, 4096, 1 << 20], ropes, layers.collect()) };
    let found = states(&deepseek);
    assert!(found.contains(&(State::LatentRows { width: 512, window: Some(128) }, 43)), "{found:?}");
    assert!(found.contains(&(State::CompressedRows { width: 512, rate: 128 }, 20)), "{found:?}");
    assert!(found.contains(&(State::CompressedRows { width: 128, rate: 4 }, 21)), "{found:?}");
}
