//! Divides each memory, by pure arithmetic over [`MemoryPlan`].

use interbed_device::Bytes;
use interbed_engine::{MemoryNeeds, MemoryPlan};

use super::shape::Shape;
use crate::refusal::Refusal;

/// Bytes that a GPU's driver and libraries take of its memory.
const DRIVER: u64 = 560 << 20;

/// Holds what the user asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wishes {
    /// Bytes of host memory.
    pub memory: u64,
    /// Bytes of device memory, if there is a device.
    pub gpu_memory: Option<u64>,
    /// Number of tokens of KV; `None` for the number that the rule gives.
    pub kv_tokens: Option<u64>,
    /// Bytes of host memory for units of weights; `None` for all that is left.
    pub host_weights: Option<u64>,
    /// Bytes of device memory for units of weights; `None` for all that is left.
    pub gpu_weights: Option<u64>,
}

/// Tells how one memory is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tier {
    /// Bytes of the memory in all.
    pub total: u64,
    /// Bytes that units of weights may take.
    pub units: u64,
    /// Names and bytes of everything else.
    pub others: Vec<(&'static str, u64)>,
}

/// Tells how the memories of host and device are divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Division {
    pub host: Tier,
    pub device: Option<Tier>,
    pub kv: Kv,
}

/// Returns what an engine needs of a machine without a device, within a budget of host memory.
pub(super) type NeedsWithin<'n> = &'n dyn Fn(Bytes) -> MemoryNeeds;

impl Division {
    /// Divides the memories. `shape` is cut into the smallest bands.
    ///
    /// # Errors
    /// Fails if a memory is too small, with the least that works, or if the user wishes for more than there is.
    pub fn of(wishes: &Wishes, shape: &Shape, needs: NeedsWithin<'_>) -> Result<Self, Refusal> {
        match wishes.gpu_memory {
            None => on_host(wishes, shape, needs),
            Some(gpu_memory) => on_device(wishes, gpu_memory, shape, &needs(Bytes(wishes.memory))),
        }
    }

    /// Returns whether the device, or the host if there is none, streams some of the weights from a lower tier.
    pub fn streams(&self, shape: &Shape) -> bool {
        self.device.as_ref().unwrap_or(&self.host).units < shape.memory()
    }
}

fn on_host(wishes: &Wishes, shape: &Shape, needs: NeedsWithin<'_>) -> Result<Division, Refusal> {
    let HostPlan { plan, kv, mut others } = HostPlan::of(wishes.memory, needs, wishes.kv_tokens)?;
    let whole = shape.memory();
    let units = if plan.streamed { plan.weights.0.saturating_sub(shape.fixed_bytes()).min(whole) } else { whole };
    let units = chosen(units, wishes.host_weights, shape, "--host-weights", "--memory")?;
    let fixed = if plan.streamed { shape.fixed_bytes() } else { plan.weights.0.saturating_sub(whole) };
    others.push(("norms, embedding", fixed));
    Ok(Division { host: Tier { total: wishes.memory, units, others }, device: None, kv })
}

/// Divides memory for a device that computes and holds keys and values, beside a host that holds weights and requests.
fn on_device(wishes: &Wishes, gpu_memory: u64, shape: &Shape, needs: &MemoryNeeds) -> Result<Division, Refusal> {
    let whole = shape.memory();
    let slots = (shape.slots_least() as u64 * shape.largest()).min(whole);
    let of_device = MemoryNeeds {
        process: Bytes(DRIVER),
        weights: Bytes(whole.saturating_add(shape.vector_bytes)),
        weights_streamed: Bytes(slots.saturating_add(shape.vector_bytes)),
        ..needs.on_device(needs.scratch, needs.block)
    };
    let (reserved, kv_bytes) = reserve_kv(&of_device, wishes.kv_tokens);
    // The words of the error are those of the host's memory.
    let plan = MemoryPlan::divide(Bytes(gpu_memory), &reserved)
        .map_err(|refused| too_small("--gpu-memory", gpu_memory, refused.smallest.0))?;
    let kv = Kv::of(&plan, needs.block_size, wishes.kv_tokens.map(|tokens| (tokens, kv_bytes)));
    let units = plan.weights.0.saturating_sub(shape.vector_bytes).min(whole);
    let units = chosen(units, wishes.gpu_weights, shape, "--gpu-weights", "--gpu-memory")?;
    let device = Tier {
        total: gpu_memory,
        units,
        others: vec![
            ("KV cache", kv.bytes),
            ("scratch", needs.scratch.0),
            ("driver", DRIVER),
            ("norms", shape.vector_bytes),
        ],
    };
    let others = vec![
        ("requests", needs.requests.0),
        ("process", needs.process.0),
        ("swapping", needs.swap.0),
        ("embedding rows", shape.row_memory),
    ];
    let taken: u64 = others.iter().map(|(_, bytes)| bytes).sum();
    let beyond_device = whole.saturating_sub(units);
    let least = taken.saturating_add(slots.min(beyond_device)).max(needs.opening.0);
    if wishes.memory < least {
        return Err(too_small("--memory", wishes.memory, least));
    }
    // Weights that stay in the device need not be in the host too. Slots, and the remainder of spreading, take less
    // than an eighth.
    let enough = beyond_device.saturating_add(whole / 8).min(whole);
    let left = chosen((wishes.memory - taken).min(enough), wishes.host_weights, shape, "--host-weights", "--memory")?;
    Ok(Division { host: Tier { total: wishes.memory, units: left, others }, device: Some(device), kv })
}

/// The division of host memory without a device.
pub(super) struct HostPlan {
    pub plan: MemoryPlan,
    pub kv: Kv,
    /// Names and bytes of everything but weights.
    pub others: Vec<(&'static str, u64)>,
}

impl HostPlan {
    /// Divides `total` bytes, with room for `kv_tokens` tokens of KV if that is given.
    ///
    /// # Errors
    /// Fails if the memory is too small. The error advises the least that works.
    pub fn of(total: u64, needs: NeedsWithin<'_>, kv_tokens: Option<u64>) -> Result<Self, Refusal> {
        let plan = MemoryPlan::divide_within(Bytes(total), &|total| reserve_kv(&needs(total), kv_tokens).0)?;
        let needs = needs(Bytes(total));
        let (_, kv_bytes) = reserve_kv(&needs, kv_tokens);
        let kv = Kv::of(&plan, needs.block_size, kv_tokens.map(|tokens| (tokens, kv_bytes)));
        let others = vec![
            ("KV cache", kv.bytes),
            ("scratch", needs.scratch.0),
            ("requests", plan.requests.0),
            ("process", part(&plan, "process")),
            ("swapping", needs.swap.0),
        ];
        Ok(Self { plan, kv, others })
    }
}

/// Describes the keys and values of a division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kv {
    /// Tokens of KV for which there is room in the memory of the side that computes attention.
    pub tokens: u64,
    /// Tokens of KV that the room can grow to, at the expense of weights.
    pub tokens_max: u64,
    pub bytes: u64,
    /// Bytes of memory below which weights would be streamed, and the tokens of KV that there could then be, if these
    /// are more than `tokens_max`.
    pub streams_below: Option<(u64, u64)>,
}

impl Kv {
    /// Reads the KV of a plan, or that of `wished`, the tokens and their bytes, which the plan counts elsewhere.
    fn of(plan: &MemoryPlan, block_size: usize, wished: Option<(u64, u64)>) -> Self {
        if let Some((tokens, bytes)) = wished {
            return Self { tokens, tokens_max: tokens, bytes, streams_below: None };
        }
        let tokens = |blocks: usize| blocks as u64 * block_size as u64;
        Self {
            tokens: tokens(plan.num_blocks),
            tokens_max: tokens(plan.num_blocks_max),
            bytes: part(plan, "KV blocks"),
            streams_below: plan.streams_below.map(|(limit, blocks)| (limit.0, tokens(blocks))),
        }
    }
}

/// Returns the bytes of a part of a plan's budget.
fn part(plan: &MemoryPlan, name: &str) -> u64 {
    plan.budget.entries().iter().find(|(part, _)| part == name).map_or(0, |(_, bytes)| bytes.0)
}

/// Counts the KV of `kv_tokens` tokens among the memory that must fit in any case. The plan that then divides the
/// memory adds as little KV of its own as it can.
fn reserve_kv(needs: &MemoryNeeds, kv_tokens: Option<u64>) -> (MemoryNeeds, u64) {
    let Some(tokens) = kv_tokens else { return (*needs, 0) };
    let bytes = needs.block.0.saturating_mul(tokens.div_ceil(needs.block_size as u64));
    let scratch = Bytes(needs.scratch.0.saturating_add(bytes));
    (MemoryNeeds { scratch, max_model_len: 1, max_num_seqs: 1, ..*needs }, bytes)
}

/// Returns the bytes that a flag chooses, or all that is left if the flag is not given.
fn chosen(left: u64, wish: Option<u64>, shape: &Shape, flag: &str, of: &str) -> Result<u64, Refusal> {
    let Some(wish) = wish else { return Ok(left) };
    let least = (shape.slots_least() as u64 * shape.largest()).min(shape.memory());
    if wish < least {
        return Err(Refusal::advised(
            format!("{flag} {} is too small: weights stream through {} at least", Bytes(wish), Bytes(least)),
            format!("give {flag} {}M or more", least.div_ceil(1 << 20)),
        ));
    }
    if wish > left && left < shape.memory() {
        return Err(Refusal::advised(
            format!("{flag} asks for {}, but {of} leaves {} for weights", Bytes(wish), Bytes(left)),
            format!("give {flag} less, or {of} more"),
        ));
    }
    Ok(wish.min(left))
}

fn too_small(flag: &str, total: u64, least: u64) -> Refusal {
    Refusal::advised(
        format!("{flag} {} cannot work: the least that does is {}", Bytes(total), Bytes(least)),
        format!("give {flag} {}M or more", least.div_ceil(1 << 20)),
    )
}

#[cfg(test)]
mod tests {
    use interbed_engine::SchemaNeeds;
    use interbed_kernels::DType;

    use super::super::shape::Cut;
    use super::super::shape::tests::shape_of;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn needs(shape: &Shape) -> MemoryNeeds {
        MemoryNeeds {
            process: Bytes(7),
            opening: Bytes(0),
            weights: Bytes(shape.memory() + shape.vector_bytes + shape.embedding_bytes),
            weights_streamed: Bytes(shape.least_budget()),
            scratch: Bytes(200 << 20),
            requests: Bytes(128 << 20),
            schemas: SchemaNeeds::default(),
            swap: Bytes(0),
            block: Bytes(2 << 20),
            block_returnable: Bytes(0),
            blocks_most: usize::MAX,
            block_size: 16,
            blocks_beside: 0,
            max_model_len: 8192,
            max_num_seqs: 64,
        }
    }

    fn wishes(memory: u64, gpu_memory: Option<u64>) -> Wishes {
        Wishes { memory, gpu_memory, kv_tokens: None, host_weights: None, gpu_weights: None }
    }

    fn check(tier: &Tier) {
        let parts = tier.units + tier.others.iter().map(|(_, bytes)| bytes).sum::<u64>();
        assert!(parts <= tier.total, "{tier:?}");
    }

    #[test]
    fn parts_never_exceed_the_whole() {
        let shape = shape_of("llama-3-8b", DType::BF16, Cut::Bands(256 << 10));
        let needs = needs(&shape);
        for gib in [1, 2, 6, 14, 16, 17, 18, 20, 64] {
            for gpu in [None, Some(2), Some(8), Some(15), Some(24)] {
                for kv_tokens in [None, Some(16), Some(4096)] {
                    let wishes = Wishes { kv_tokens, ..wishes(gib * GIB, gpu.map(|gpu| gpu * GIB)) };
                    let Ok(division) = Division::of(&wishes, &shape, &|_| needs) else {
                        assert!(gib == 1 || gpu == Some(2), "{wishes:?}");
                        continue;
                    };
                    check(&division.host);
                    division.device.iter().for_each(check);
                    assert_eq!(division.kv.tokens, kv_tokens.unwrap_or(division.kv.tokens));
                    assert!(division.kv.tokens > 0 && division.host.units <= shape.memory());
                }
            }
        }
    }

    #[test]
    fn the_least_that_works_is_named() {
        let shape = shape_of("llama-3-8b", DType::BF16, Cut::Bands(256 << 10));
        let needs = needs(&shape);
        let least = |wishes: &Wishes, flag: &str| {
            let error = Division::of(wishes, &shape, &|_| needs).expect_err("too small");
            // The plan of the host's memory has its advice in the message, the others in the hint.
            let text = format!("{error} {}", error.hint().unwrap_or_default());
            let advice = text.split(&format!("give {flag} ")).nth(1).expect("advice");
            advice.split('M').next().and_then(|number| number.parse::<u64>().ok()).expect("a number") << 20
        };
        let host = least(&wishes(GIB / 8, None), "--memory");
        Division::of(&wishes(host, None), &shape, &|_| needs).expect("the least works");
        let gpu = least(&wishes(6 * GIB, Some(GIB / 8)), "--gpu-memory");
        Division::of(&wishes(6 * GIB, Some(gpu)), &shape, &|_| needs).expect("the least works");
        let beside = least(&wishes(GIB / 8, Some(8 * GIB)), "--memory");
        Division::of(&wishes(beside, Some(8 * GIB)), &shape, &|_| needs).expect("the least works");
        let greedy = Wishes { host_weights: Some(6 * GIB), ..wishes(6 * GIB, None) };
        assert!(Division::of(&greedy, &shape, &|_| needs).is_err());
        let modest = Wishes { host_weights: Some(3 * GIB), ..greedy };
        assert_eq!(Division::of(&modest, &shape, &|_| needs).expect("it is there").host.units, 3 * GIB);
    }
}
