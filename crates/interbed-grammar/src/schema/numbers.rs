//! Represents the numbers that a schema allows, and builds regular expressions for their texts.
//!
//! Clients often parse numbers as floating point and validate the result. The texts therefore satisfy the schema both
//! as they are written and after rounding to floating point: an excluded bound is avoided by the last digit that
//! floating point distinguishes.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::rc::Rc;

use serde_json::{Value, json};

use super::decimal::Decimal;
use super::digits::between;

/// Maximum number of digits of a whole number.
const WHOLE_DIGITS_MAX: i64 = 30;
/// The number of decimal digits that floating point keeps. Numbers with a point have no more digits before the point,
/// unless a bound needs more.
const DIGITS_EXACT: i64 = 15;
/// Maximum number of digits before the decimal point that a bound may need.
const BOUND_DIGITS_MAX: i64 = 60;
/// Maximum number of digits after the decimal point.
const PLACES_MAX: i64 = 60;
/// Maximum number of values that an expression lists one by one.
const LISTED_MAX: i128 = 1000;
/// The largest step whose multiples an expression can recognize. Each remainder is a state of the expression.
const STEP_MAX: i128 = 1000;
/// The largest whole number up to which all whole numbers are exact in floating point.
const EXACT_MAX: i128 = (1 << 53) - 1;
/// The number of whole numbers next to a bound that are tried to find one that floating point tells from the bound.
const NEAREST: usize = 8;
/// An expression for numbers that are not whole, also not after rounding to floating point.
const BROKEN: &str = r"-?(0|[1-9][0-9]{0,8})\.[0-9]{0,4}[1-9]";
/// Maximum number of digits before the point in [`BROKEN`].
const BROKEN_DIGITS: i64 = 9;
/// Maximum number of digits after the point in [`BROKEN`].
const BROKEN_PLACES: i64 = 5;
/// Maximum number of listed numbers that other numbers are kept different from.
const EXCLUDED_MAX: usize = 32;
/// An expression for numbers without bounds. The numbers are within the range of floating point, and of bounded length.
const ANY: &str =
    r"-?((0|[1-9][0-9]{0,29})(\.[0-9]{1,30})?|[0-9](\.[0-9]{1,30})?[eE][+-]?([0-9]|[1-9][0-9]|[12][0-9]{2}))";

/// One end of a range of numbers.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    value: Decimal,
    is_excluded: bool,
    is_float: bool,
}

/// A number that all values must be multiples of.
#[derive(Debug, Clone)]
struct Step {
    value: Decimal,
    text: String,
}

/// The range of an integer type that `format` names, such as `int32`.
#[derive(Debug, Clone, Copy)]
pub(super) struct WholeFormat {
    low: i128,
    high: i128,
}

impl WholeFormat {
    /// Returns the range that the `format` called `name` stands for; `None` for other formats.
    pub(super) fn of(name: &str) -> Option<Self> {
        let (is_signed, bits) = match name.strip_prefix("int") {
            Some(bits) => (true, bits),
            None => (false, name.strip_prefix("uint")?),
        };
        let bits = [8u32, 16, 32, 64].into_iter().find(|known| known.to_string() == bits)?;
        let (low, high) = if is_signed { (-(1i128 << (bits - 1)), 1i128 << (bits - 1)) } else { (0, 1i128 << bits) };
        Some(Self { low, high: high - 1 })
    }
}

/// The numbers that a schema allows.
#[derive(Debug, Clone, Default)]
pub(super) struct Numbers {
    pub(super) is_integer: bool,
    /// Whether the numbers must have a fraction.
    is_broken: bool,
    /// The range of the integer type that `format` names. Validators may ignore it, so it does not tell values apart.
    format: Option<WholeFormat>,
    low: Option<Bound>,
    high: Option<Bound>,
    steps: Vec<Step>,
    /// The listed numbers as they are written, if `enum` or `const` lists them.
    literals: Option<Rc<Vec<String>>>,
}

/// The texts of numbers, in the form that the grammar can use.
#[derive(Debug, PartialEq)]
pub(super) enum Texts {
    Expression(String),
    /// The texts that match both of these regular expressions.
    Both(String, &'static str),
    /// A schema that describes the numbers. The grammar library, not this crate, translates the schema into a grammar.
    Schema(Value),
}

/// Returns whether Python and JavaScript read this text as floating point, which they do if it has a point or an
/// exponent.
fn is_float(text: &str) -> bool {
    text.contains(['.', 'e', 'E'])
}

impl Bound {
    fn new(text: &str, is_excluded: bool) -> Option<Self> {
        Some(Self { value: Decimal::of(text)?, is_excluded, is_float: is_float(text) })
    }

    fn negated(&self) -> Self {
        Self { value: self.value.negated(), ..self.clone() }
    }

    /// Returns the smallest multiple of `10^-places` that this lower bound allows with certainty.
    fn least(&self, places: i64) -> Option<Decimal> {
        let digits = self.value.whole_digits();
        if !self.is_excluded && digits <= DIGITS_EXACT {
            return Some(self.value.ceil(places));
        }
        // Floating point does not distinguish finer steps.
        let (places, from) = (places.min(DIGITS_EXACT - digits), self.value.to_f64());
        let inside = |places: i64| {
            let next = self.value.ceil(places);
            if next == self.value { next.above(places) } else { next }
        };
        let lowest = places.min(0) - 20;
        (lowest..=places).rev().map(inside).find(|inside| inside.to_f64() > from)
    }

    /// Returns the smallest whole number that this lower bound allows with certainty.
    fn least_whole(&self) -> Option<Decimal> {
        if self.is_float && self.value.whole_digits() > DIGITS_EXACT {
            return self.least(0);
        }
        let next = self.value.ceil(0);
        if !self.is_excluded {
            return Some(next);
        }
        // The next whole numbers may round to the bound in floating point, so several are tried.
        let from = self.value.to_f64();
        let is_inside = |whole: &Decimal| *whole > self.value && whole.to_f64() > from;
        let nearest = std::iter::successors(Some(next), |whole| Some(whole.above(0))).take(NEAREST);
        nearest.into_iter().find(is_inside).or_else(|| self.least(0))
    }

    /// Returns whether `value` satisfies this lower bound.
    fn admits(&self, value: &Decimal) -> bool {
        match value.cmp(&self.value) {
            Ordering::Less => false,
            _ if self.is_excluded => value.to_f64() > self.value.to_f64(),
            _ => true,
        }
    }
}

impl Numbers {
    /// Returns all numbers, or all whole numbers if `is_integer` is set.
    pub(super) fn any(is_integer: bool) -> Self {
        Self { is_integer, ..Self::default() }
    }

    /// Restricts the numbers to the range of an integer type.
    pub(super) fn in_format(self, format: WholeFormat) -> Self {
        Self { format: Some(format), ..self }
    }

    /// Returns the listed texts that satisfy the other keywords; `None` if the schema lists no numbers.
    pub(super) fn kept(&self) -> Option<Vec<&str>> {
        let texts = self.literals.as_ref()?;
        Some(texts.iter().filter(|text| self.admits(text)).map(String::as_str).collect())
    }

    /// Returns the numbers that are not in `other`.
    ///
    /// # Errors
    /// Fails if the numbers cannot be told apart; the error says why.
    pub(super) fn without(&self, other: &Self) -> Result<Vec<Self>, String> {
        if let Some(texts) = &self.literals {
            let kept: Vec<String> = texts.iter().filter(|text| !other.may_have(text)).cloned().collect();
            let left = Self { literals: Some(Rc::new(kept)), ..self.clone() };
            return Ok(if left.literals.as_ref().is_some_and(|texts| texts.is_empty()) { vec![] } else { vec![left] });
        }
        let mut left = Vec::new();
        if let Some(texts) = &other.literals {
            if texts.len() > EXCLUDED_MAX {
                return Err(format!("at most {EXCLUDED_MAX} numbers can be told from others; leave some out"));
            }
            left.push(self.clone());
            for bound in texts.iter().filter(|text| other.may_have(text)).filter_map(|text| Bound::new(text, true)) {
                let sides = left.iter().flat_map(|numbers| {
                    let (low, high) = (Some(bound.clone()), Some(bound.clone()));
                    [numbers.meet(&Self { high, ..Self::default() }), numbers.meet(&Self { low, ..Self::default() })]
                });
                left = sides.filter(|numbers| !numbers.is_empty()).collect();
            }
        } else {
            if let Some(step) = other.steps.iter().find(|step| self.steps.iter().all(|own| own.text != step.text)) {
                return Err(format!(
                    "numbers that are no multiples of {} cannot be told from others; leave it out",
                    step.text
                ));
            }
            let turned = |bound: &Bound| Some(Bound { is_excluded: !bound.is_excluded, ..bound.clone() });
            if let Some(low) = &other.low {
                left.push(self.meet(&Self { high: turned(low), ..Self::default() }));
            }
            if let Some(high) = &other.high {
                left.push(self.meet(&Self { low: turned(high), ..Self::default() }));
            }
            if other.is_integer && !self.is_integer {
                left.push(Self { is_broken: true, ..self.clone() });
            }
            if other.is_broken && !self.is_broken {
                left.push(Self { is_integer: true, ..self.clone() });
            }
            left.retain(|numbers| !numbers.is_empty());
        }
        if left.iter().any(|numbers| numbers.is_broken && !numbers.steps.is_empty()) {
            return Err("multiples that are not whole cannot be told from others; leave \"multipleOf\" out".into());
        }
        Ok(left)
    }

    /// Returns whether a text may be one of these numbers, as it is written or in floating point.
    fn may_have(&self, text: &str) -> bool {
        let Some(value) = Decimal::of(text) else { return true };
        let float = value.to_f64();
        let is_above = |bound: &Bound, value: &Decimal, float: f64| match value.cmp(&bound.value) {
            Ordering::Less => float >= bound.value.to_f64() && !bound.is_excluded,
            Ordering::Equal => !bound.is_excluded,
            Ordering::Greater => true,
        };
        let is_in_list = |texts: &Rc<Vec<String>>| {
            texts.iter().filter_map(|one| Decimal::of(one)).any(|one| one == value || one.to_f64() == float)
        };
        let is_multiple =
            |step: &Step| value.is_multiple_of(&step.value) || (float / step.value.to_f64()).fract() == 0.0;
        let is_whole = value.is_whole() || float.fract() == 0.0;
        (is_whole || !self.is_integer)
            && !(self.is_broken && value.is_whole())
            && self.literals.as_ref().is_none_or(is_in_list)
            && self.low.as_ref().is_none_or(|low| is_above(low, &value, float))
            && self.high.as_ref().is_none_or(|high| is_above(&high.negated(), &value.negated(), -float))
            && self.steps.iter().all(is_multiple)
    }

    /// Returns the listed numbers, written as in `texts`.
    pub(super) fn listed(mut texts: Vec<String>) -> Self {
        let mut known = HashSet::new();
        texts.retain(|text| known.insert(text.clone()));
        Self { literals: Some(Rc::new(texts)), ..Self::default() }
    }

    /// Returns the weight of a copy, in units of about 100 bytes. Listed numbers are shared and weigh nothing.
    pub(super) fn weight(&self) -> usize {
        let bounds = self.low.iter().chain(&self.high).map(|bound| 1 + bound.value.len() / 64).sum::<usize>();
        1 + bounds + self.steps.iter().map(|step| 1 + step.text.len() / 32).sum::<usize>()
    }

    /// Returns the number of texts that are compared when two lists of numbers are intersected.
    pub(super) fn listed_in_both(&self, other: &Self) -> usize {
        match (&self.literals, &other.literals) {
            (Some(one), Some(other)) => one.iter().chain(&**other).map(|text| 1 + text.len() / 64).sum(),
            _ => 0,
        }
    }

    /// Adds the lower bound `text`. Returns `None` if `text` is not a number.
    pub(super) fn at_least(self, text: &str, is_excluded: bool) -> Option<Self> {
        let bounds = Self { low: Some(Bound::new(text, is_excluded)?), ..Self::default() };
        Some(self.meet(&bounds))
    }

    /// Adds the upper bound `text`. Returns `None` if `text` is not a number.
    pub(super) fn at_most(self, text: &str, is_excluded: bool) -> Option<Self> {
        let bounds = Self { high: Some(Bound::new(text, is_excluded)?), ..Self::default() };
        Some(self.meet(&bounds))
    }

    /// Restricts the numbers to multiples of `text`. Returns `None` if `text` is not a positive number.
    pub(super) fn multiple_of(self, text: &str) -> Option<Self> {
        let value = Decimal::of(text).filter(|value| !value.is_zero() && !value.is_negative())?;
        let steps = vec![Step { value, text: text.to_owned() }];
        Some(self.meet(&Self { steps, ..Self::default() }))
    }

    /// Returns the numbers that are in both sets.
    pub(super) fn meet(&self, other: &Self) -> Self {
        let literals = match (&self.literals, &other.literals) {
            (Some(one), Some(other)) => {
                let values: HashSet<_> = other.iter().map(|text| Decimal::of(text)).collect();
                Some(Rc::new(one.iter().filter(|text| values.contains(&Decimal::of(text))).cloned().collect()))
            }
            (one, other) => one.as_ref().or(other.as_ref()).cloned(),
        };
        let mut steps = self.steps.clone();
        steps.extend(other.steps.iter().filter(|step| self.steps.iter().all(|own| own.text != step.text)).cloned());
        let format = match (self.format, other.format) {
            (Some(one), Some(other)) => {
                Some(WholeFormat { low: one.low.max(other.low), high: one.high.min(other.high) })
            }
            (one, other) => one.or(other),
        };
        Self {
            is_integer: self.is_integer || other.is_integer,
            is_broken: self.is_broken || other.is_broken,
            format,
            low: tighter(&self.low, &other.low, Ordering::Greater),
            high: tighter(&self.high, &other.high, Ordering::Less),
            steps,
            literals,
        }
    }

    /// Returns whether some number may be in both sets.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let both = Self { format: None, ..self.meet(other) };
        !matches!(both.texts(), Ok(None))
    }

    /// Returns the texts of these numbers; `None` if there are none.
    ///
    /// # Errors
    /// Fails if the numbers cannot be told from others; the error says why.
    pub(super) fn texts(&self) -> Result<Option<Texts>, String> {
        if let Some(WholeFormat { low, high }) = self.format {
            let bound = |units| Some(Bound { value: Decimal::of_units(units, 0), is_excluded: false, is_float: false });
            let range = Self { is_integer: true, low: bound(low), high: bound(high), ..Self::default() };
            return Self { format: None, ..self.clone() }.meet(&range).texts();
        }
        if let Some(texts) = &self.literals {
            return Ok(listed(texts.iter().filter(|text| self.admits(text)).cloned()));
        }
        if self.is_broken {
            return self.broken();
        }
        if self.is_integer || (!self.steps.is_empty() && self.steps.iter().all(|step| step.value.is_whole())) {
            return self.whole();
        }
        if !self.steps.is_empty() {
            return self.multiples();
        }
        if self.low.is_none() && self.high.is_none() {
            return Ok(Some(Texts::Expression(ANY.into())));
        }
        self.range()
    }

    fn admits(&self, text: &str) -> bool {
        let Some(value) = Decimal::of(text) else { return false };
        let is_whole = value.is_whole() && (!is_float(text) || value.to_f64().is_finite());
        let is_broken = || !value.is_whole() && value.to_f64().fract() != 0.0;
        (is_whole || !self.is_integer)
            && (!self.is_broken || is_broken())
            && self.low.as_ref().is_none_or(|low| low.admits(&value))
            && self.high.as_ref().is_none_or(|high| high.negated().admits(&value.negated()))
            && self.steps.iter().all(|step| step.divides(text, &value))
    }

    /// Returns the smallest and the largest allowed value with at most `digits` digits. `least` rounds a lower bound
    /// up.
    fn ends(&self, digits: i64, least: impl Fn(&Bound) -> Option<Decimal>) -> Option<(Decimal, Decimal)> {
        let largest = Decimal::power_of_ten(digits).negated().above(0).negated();
        let low = self.low.as_ref().map_or_else(|| Some(largest.negated()), &least)?;
        let high = self.high.as_ref().map(Bound::negated);
        let high = high.map_or_else(|| Some(largest.clone()), |high| least(&high).map(|least| least.negated()))?;
        let (low, high) = (low.max(largest.negated()), high.min(largest));
        (low <= high).then_some((low, high))
    }

    /// Returns the texts of the numbers that are not whole.
    fn broken(&self) -> Result<Option<Texts>, String> {
        if self.is_integer || self.is_empty() {
            return Ok(None);
        }
        if !self.steps.is_empty() {
            return Err("multiples that are not whole cannot be told from others; leave \"multipleOf\" out".into());
        }
        if self.low.is_none() && self.high.is_none() {
            return Ok(Some(Texts::Expression(BROKEN.into())));
        }
        match self.ends(BROKEN_DIGITS, |bound| bound.least(BROKEN_PLACES)) {
            // A range that contains a whole number also contains other numbers.
            Some((low, high)) if high.to_f64() - low.to_f64() >= 1.0 => match self.range()? {
                Some(Texts::Expression(range)) => Ok(Some(Texts::Both(range, BROKEN))),
                _ => Ok(None),
            },
            _ => Err("numbers in so small a range cannot be told from whole ones; leave a bound out".into()),
        }
    }

    /// Returns the texts of the whole numbers, written without a point.
    fn whole(&self) -> Result<Option<Texts>, String> {
        let is_exact = self.steps.iter().all(|step| !is_float(&step.text));
        let digits = if is_exact { WHOLE_DIGITS_MAX } else { DIGITS_EXACT };
        let Some((low, high)) = self.ends(digits, Bound::least_whole) else {
            return if self.is_beyond(digits) { Err(beyond(digits)) } else { Ok(None) };
        };
        let mut step: i128 = 1;
        for one in &self.steps {
            let places = one.value.places().min(30) as u32;
            let units = one.value.units(places).filter(|_| one.value.places() <= 30).ok_or_else(|| one.too_fine())?;
            let numerator = units / gcd(units, 10i128.pow(places));
            step = lcm(step, numerator).ok_or_else(|| one.too_fine())?;
        }
        if step == 1 && self.steps.iter().all(Step::is_binary) {
            return Ok(between(&low, &high, 0).map(Texts::Expression));
        }
        let (low, high) = (low.units(0).unwrap_or(-EXACT_MAX), high.units(0).unwrap_or(EXACT_MAX));
        let is_safe = self.steps.iter().all(Step::is_binary);
        self.stepped(low, high, step, 0, is_safe)
    }

    /// Returns the texts of the multiples that are written with a point.
    fn multiples(&self) -> Result<Option<Texts>, String> {
        let places = self.steps.iter().map(|step| step.value.places()).max().unwrap_or(0);
        let Some(finest) = self.steps.iter().max_by_key(|step| step.value.places()) else { return Ok(None) };
        if places > 15 {
            return Err(finest.too_fine());
        }
        let mut step: i128 = 1;
        for one in &self.steps {
            let units = one.value.units(places as u32).ok_or_else(|| one.too_fine())?;
            step = lcm(step, units).ok_or_else(|| one.too_fine())?;
        }
        // Up to this number of digits, multiples of a binary fraction are exact in floating point.
        let digits = DIGITS_EXACT - (places - 3).max(0).div_euclid(3) - 1;
        let Some((low, high)) = self.ends(digits, |bound| bound.least(places)) else {
            return if self.is_beyond(digits) { Err(beyond(digits)) } else { Ok(None) };
        };
        let units = |end: &Decimal| end.units(places as u32).ok_or_else(|| finest.too_fine());
        self.stepped(units(&low)?, units(&high)?, step, places as u32, self.steps.iter().all(Step::is_binary))
    }

    /// Returns the texts of the multiples of `step` from `low` to `high`, all in units of `10^-places`.
    fn stepped(&self, low: i128, high: i128, step: i128, places: u32, is_safe: bool) -> Result<Option<Texts>, String> {
        let (first, last) = (low.div_euclid(step) + i128::from(low.rem_euclid(step) != 0), high.div_euclid(step));
        if first > last {
            return Ok(None);
        }
        if last - first < LISTED_MAX {
            let texts = (first..=last).map(|count| Decimal::of_units(count * step, places).plain());
            let is_kept = |text: &String| {
                Decimal::of(text).is_some_and(|value| self.steps.iter().all(|step| step.divides(text, &value)))
            };
            return Ok(listed(texts.filter(is_kept)));
        }
        let told = self.steps.first().map_or("", |step| &step.text);
        if !is_safe {
            return Err(format!(
                "\"multipleOf\" {told} can be enforced only where \"minimum\" and \"maximum\" leave at most \
                 {LISTED_MAX} multiples, since it is no binary fraction; leave it out, or bound it"
            ));
        }
        let most = if places == 0 { EXACT_MAX } else { i128::MAX };
        let (first, last) = (first.max(-most / step), last.min(most / step));
        if step > STEP_MAX || first > last {
            return Err(format!("\"multipleOf\" {told} is too large, or together with others; leave it out"));
        }
        let number = |units: i128| -> Value {
            let text = Decimal::of_units(units, places).plain();
            serde_json::from_str(&text).unwrap_or(Value::Null)
        };
        let kind = if places == 0 { "integer" } else { "number" };
        Ok(Some(Texts::Schema(json!({"type": kind, "multipleOf": number(step), "minimum": number(first * step),
            "maximum": number(last * step)}))))
    }

    /// Returns the texts of all numbers of the range.
    fn range(&self) -> Result<Option<Texts>, String> {
        let inner = |bound: &Option<Bound>, is_inner: fn(&Decimal) -> bool| {
            bound.as_ref().filter(|bound| is_inner(&bound.value)).map_or(0, |bound| bound.value.whole_digits() + 3)
        };
        let needed = inner(&self.low, |value| !value.is_negative()).max(inner(&self.high, Decimal::is_negative));
        if needed > BOUND_DIGITS_MAX {
            return Err(beyond(BOUND_DIGITS_MAX));
        }
        let digits = needed.max(DIGITS_EXACT);
        let bounds = || self.low.iter().chain(&self.high);
        let widest = match (&self.low, &self.high) {
            (Some(low), Some(high)) => low.value.whole_digits().max(high.value.whole_digits()).min(digits),
            _ => digits,
        };
        let finest = bounds().map(|bound| bound.value.places()).max().unwrap_or(0);
        let places = (DIGITS_EXACT - widest).max(finest.min(PLACES_MAX - 3) + 3);
        match self.ends(digits, |bound| bound.least(places)) {
            Some((low, high)) => Ok(between(&low, &high, places as usize).map(Texts::Expression)),
            None if self.is_empty() => Ok(None),
            None => Err("the bounds are closer than floating point tells apart; leave one out".into()),
        }
    }

    /// Returns whether the range contains no number.
    fn is_empty(&self) -> bool {
        let (Some(low), Some(high)) = (&self.low, &self.high) else { return false };
        low.value > high.value || (low.value == high.value && (low.is_excluded || high.is_excluded))
    }

    /// Returns whether all numbers of the range have more than `digits` digits.
    fn is_beyond(&self, digits: i64) -> bool {
        let largest = Decimal::power_of_ten(digits);
        self.low.as_ref().is_some_and(|low| low.value >= largest)
            || self.high.as_ref().is_some_and(|high| high.value <= largest.negated())
    }
}

impl Step {
    /// Returns whether the step is a whole number or a binary fraction, which floating point represents exactly.
    fn is_binary(&self) -> bool {
        let places = self.value.places();
        let fives = u32::try_from(places).ok().and_then(|places| 5i128.checked_pow(places));
        let units = u32::try_from(places).ok().and_then(|places| self.value.units(places));
        places <= 15 && units.zip(fives).is_some_and(|(units, fives)| units % fives == 0)
    }

    /// Returns whether a text is a multiple of the step, both exactly and in floating point.
    fn divides(&self, text: &str, value: &Decimal) -> bool {
        let in_floating_point = || {
            let (value, step) = (value.to_f64(), self.value.to_f64());
            if is_float(&self.text) { (value / step).fract() == 0.0 } else { value % step == 0.0 }
        };
        let is_exact = !is_float(text) && !is_float(&self.text);
        value.is_multiple_of(&self.value) && (is_exact || in_floating_point())
    }

    fn too_fine(&self) -> String {
        format!("\"multipleOf\" {} has too many digits; leave it out", self.text)
    }
}

fn beyond(digits: i64) -> String {
    format!("only numbers with more than {digits} digits keep to the bounds; leave them out")
}

/// Returns an expression that matches these texts; `None` if there are none.
fn listed(texts: impl Iterator<Item = String>) -> Option<Texts> {
    let texts: Vec<String> = texts.map(|text| text.replace('.', r"\.").replace('+', r"\+")).collect();
    (!texts.is_empty()).then(|| Texts::Expression(texts.join("|")))
}

fn tighter(one: &Option<Bound>, other: &Option<Bound>, tight: Ordering) -> Option<Bound> {
    let (Some(one), Some(other)) = (one, other) else { return one.as_ref().or(other.as_ref()).cloned() };
    let order = one.value.cmp(&other.value).then_with(|| match tight {
        Ordering::Greater => one.is_excluded.cmp(&other.is_excluded),
        _ => other.is_excluded.cmp(&one.is_excluded),
    });
    Some(if order == tight { one.clone() } else { other.clone() })
}

fn gcd(one: i128, other: i128) -> i128 {
    if other == 0 { one } else { gcd(other, one % other) }
}

fn lcm(one: i128, other: i128) -> Option<i128> {
    (one / gcd(one, other)).checked_mul(other).filter(|&product| product <= 10i128.pow(30))
}
