//! A small model that learns from a table which another card holds, and which is READ in batches: the rows become features
//! on their way, by a service, or in the program.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use verbs_sys::current::verbs as v;

use super::link::{ConnectedSides, Options};
use super::port::run;
use super::rows::{COMPILED_IN, DENSE, ROW, words};
use crate::ffi::Operation;

/// Sparse columns are taken modulo this.
const MODULUS: i32 = 8192;
/// Rows of a batch, and batches of the table.
const BATCH: usize = 256;
const BATCHES: usize = 32;
/// Bytes of a batch.
const BYTES: usize = BATCH * ROW * 4;
/// Units of the model's only hidden layer.
const UNITS: usize = 8;
/// The step of its learning.
const RATE: f32 = 0.05;
/// Turns, of each of which the quickest counts.
const TURNS: usize = 3;

/// The result of learning from the table.
#[derive(Clone, Copy, Debug)]
pub struct Learned {
    /// The processor time of this program for a batch.
    pub time: Duration,
    /// The model's mean loss in the last pass.
    pub loss: f32,
}

/// The values of a table, one behind the other: dense ones are from -500 to 9,499, and sparse ones from 0 to 99,999.
fn table() -> impl Iterator<Item = i32> {
    (0..BATCHES * BATCH * ROW).map(|at| {
        let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let digits = (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) as i32;
        if at % ROW < DENSE { digits % 10_000 - 500 } else { digits % 100_000 }
    })
}

/// The feature that a column's value becomes.
fn feature(column: usize, value: i32) -> f32 {
    if column < DENSE { (value.max(0) as f32).ln_1p() } else { value.rem_euclid(MODULUS) as f32 }
}

/// A perceptron with a hidden layer and a single output.
struct Model {
    hidden: [[f32; ROW]; UNITS],
    output: [f32; UNITS],
}

impl Model {
    fn new() -> Self {
        let weight = |at: usize| ((at * 37 % 101) as f32 - 50.0) / 500.0;
        let unit = |unit: usize| std::array::from_fn(|at| weight(unit * ROW + at));
        Self { hidden: std::array::from_fn(unit), output: std::array::from_fn(weight) }
    }

    /// Learns from a row; gives the loss before that.
    fn learn(&mut self, row: &[f32], is_one: bool) -> f32 {
        let scaled: [f32; ROW] =
            std::array::from_fn(|at| row[at] * if at < DENSE { 0.1 } else { 1.0 / MODULUS as f32 });
        let sum = |weights: &[f32; ROW]| -> f32 {
            weights.iter().zip(&scaled).map(|(weight, input)| weight * input).sum()
        };
        let hidden = self.hidden.each_ref().map(|weights| sum(weights).max(0.0));
        let score: f32 = self.output.iter().zip(&hidden).map(|(weight, it)| weight * it).sum();
        let chance = 1.0 / (1.0 + (-score).exp());
        let wrong = chance - f32::from(u8::from(is_one));
        for ((weights, weight), value) in self.hidden.iter_mut().zip(&mut self.output).zip(hidden) {
            if value > 0.0 {
                let step = RATE * wrong * *weight;
                weights.iter_mut().zip(&scaled).for_each(|(it, input)| *it -= step * input);
            }
            *weight -= RATE * wrong * value;
        }
        -(if is_one { chance } else { 1.0 - chance }).max(1e-6).ln()
    }
}

/// The processor time of this program so far.
fn worked() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let time = usage.user_time() + usage.system_time();
    Ok(Duration::from_micros(u64::try_from(time.num_microseconds())?))
}

/// READs the table batch by batch and learns from it; `made` tells whether it comes as features.
fn learn(link: &ConnectedSides, made: bool, passes: usize) -> Result<Learned> {
    // What the model is to find: whether the first column is above the middle.
    let labels: Vec<bool> = table().step_by(ROW).map(|value| value > 4_500).collect();
    let (mut model, mut bytes, mut rows) = (Model::new(), vec![0; BYTES], vec![0.0; BATCH * ROW]);
    let (mut loss, begun) = (0.0, worked()?);
    for _ in 0..passes {
        loss = 0.0;
        for (batch, labels) in labels.chunks(BATCH).enumerate() {
            let mut request = link.request(1, Operation::Read, BYTES);
            request.remote.0 += (batch * BYTES) as u64;
            link.left.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
            link.success(&link.left.send_cq)?;
            link.left.region.read(0, &mut bytes);
            for (at, (to, word)) in rows.iter_mut().zip(words(&bytes)).enumerate() {
                *to = if made { f32::from_bits(word) } else { feature(at % ROW, word as i32) };
            }
            for (row, is_one) in rows.chunks_exact(ROW).zip(labels) {
                loss += model.learn(row, *is_one);
            }
        }
    }
    let time = worked()?.saturating_sub(begun).div_f64((passes * BATCHES) as f64);
    Ok(Learned { time, loss: loss / labels.len() as f32 })
}

/// Has a model learn from the table in so many passes, with rows that the program makes features of, and with a service
/// that does it, attached by the `balboa` at that path.
///
/// # Errors
/// When a call fails, or both learn something else.
pub fn all(options: &Options, balboa: &Path, passes: usize) -> Result<[Learned; 2]> {
    let [(device, peer), _] = options.peer_addresses()?;
    // While it waits for a batch it sleeps: time in which it polls would be counted as its work.
    let options = &Options { events: true, ..options.clone() };
    let bytes: Vec<u8> = table().flat_map(i32::to_le_bytes).collect();
    let link = || -> Result<ConnectedSides> {
        let link = ConnectedSides::new(options, v::IBV_MTU_4096, bytes.len())?;
        link.right.region.write(0, &bytes);
        Ok(link)
    };
    let mut best: [Option<Learned>; 2] = [None; 2];
    for _ in 0..TURNS {
        let host = learn(&link()?, false, passes)?;
        run(balboa, &["service", "attach", device, COMPILED_IN, "--peer", &peer])?;
        let service = learn(&link()?, true, passes)?;
        run(balboa, &["service", "detach", device, "--peer", &peer])?;
        ensure!((host.loss - service.loss).abs() < 0.01, "{host:?} and {service:?}");
        for (best, found) in best.iter_mut().zip([host, service]) {
            *best = Some(best.filter(|best| best.time < found.time).unwrap_or(found));
        }
    }
    let [host, service] = best.map(|best| best.context("no turn"));
    Ok([host?, service?])
}
