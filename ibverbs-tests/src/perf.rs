//! How fast two cards move messages: latency, bandwidth and messages a second of WRITE, READ and
//! SEND, with the bytes looked at.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use verbs_sys::current::verbs as v;

use crate::data::link::{self, ConnectedSides, DEPTH};
use crate::ffi::{Operation, Patience, Recv, Region, Send, Service};

/// Bytes of a message whose latency is measured.
pub const SHORT: usize = 8;
/// Bytes of a message where messages are counted.
pub const SMALL: usize = 64;
/// Bytes of a message where bytes are counted.
pub const LARGE: usize = 65536;

/// Messages before those that are measured.
const TO_WARM_UP: usize = 64;
/// How long nothing may complete while messages are under way.
const LIMIT: Duration = Duration::from_secs(10);
/// The operations that are measured.
const OPERATIONS: [(Operation, &str); 3] =
    [(Operation::Write, "WRITE"), (Operation::Read, "READ"), (Operation::Send, "SEND")];

/// The devices and options of a measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device that posts, and its peer, which may be the same.
    pub devices: [String; 2],
    /// Index of the GIDs.
    pub gid_index: u8,
    /// How long each figure is measured.
    pub time: Duration,
}

/// The figures of an operation.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Its name, as the specification writes it.
    pub operation: &'static str,
    /// The time from the call that posts a message of [`SHORT`] bytes to its completion: the median, and the bound of
    /// 99 of 100.
    pub latency: [Duration; 2],
    /// Bytes a second in messages of [`LARGE`] bytes.
    pub bytes_per_second: f64,
    /// Messages of [`SMALL`] bytes a second.
    pub messages_per_second: f64,
}

impl Figures {
    /// They as JSON: `operation`, `latency_p50_us`, `latency_p99_us`, `bandwidth_mb_per_s` (1 MB is 10^6
    /// bytes), `messages_per_s`.
    pub fn json(&self) -> Value {
        let [p50, p99] = self.latency.map(|it| it.as_secs_f64() * 1e6);
        json!({
            "operation": self.operation,
            "latency_p50_us": p50,
            "latency_p99_us": p99,
            "bandwidth_mb_per_s": self.bytes_per_second / 1e6,
            "messages_per_s": self.messages_per_second,
        })
    }
}

/// Measures everything of a plan, and tells the figures of each operation as they are there.
///
/// # Errors
/// When a device refuses a step, a message fails or does not come, or bytes came that were not sent.
pub fn measure(plan: &Plan, mut tell: impl FnMut(&Figures) -> Result<()>) -> Result<()> {
    let options = link::Options {
        devices: plan.devices.clone(),
        gid_index: plan.gid_index,
        events: false,
        thread_domain: false,
        extended: None,
        service: Service::Reliable,
        cq_entries: 2 * DEPTH,
        patience: Patience::default(),
    };
    let link = ConnectedSides::new(&options, v::IBV_MTU_4096, LARGE)?;
    for (operation, name) in OPERATIONS {
        let run = Run { link: &link, operation };
        let figures = || -> Result<Figures> {
            Ok(Figures {
                operation: name,
                latency: run.latency(plan.time)?,
                bytes_per_second: run.rate(LARGE, plan.time)? * LARGE as f64,
                messages_per_second: run.rate(SMALL, plan.time)?,
            })
        };
        tell(
            &figures().with_context(|| {
                format!("{name} from {} to {}", plan.devices[0], plan.devices[1])
            })?,
        )?;
    }
    Ok(())
}

/// The content of a region before a run: each byte tells its place, and differs from the other region's.
fn fill(region: &Region, salt: u8) -> Vec<u8> {
    let bytes: Vec<u8> = (0..LARGE).map(|at| salt ^ (at ^ (at >> 8)) as u8).collect();
    region.write(0, &bytes);
    bytes
}

/// Messages of one operation, from connected queues that have nothing under way.
struct Run<'a> {
    link: &'a ConnectedSides,
    operation: Operation,
}

/// Messages that are under way.
#[derive(Default)]
struct Count {
    posted: u64,
    completed: u64,
    received: u64,
}

impl Run<'_> {
    /// The median and the 99th percentile of messages one by one.
    fn latency(&self, time: Duration) -> Result<[Duration; 2]> {
        let mut times = Vec::new();
        self.between(SHORT, |run| {
            let mut count = Count::default();
            let mut until = Instant::now() + time;
            while times.is_empty() || Instant::now() < until {
                let start = Instant::now();
                run.post(SHORT, &mut count)?;
                run.wait(SHORT, &mut count, |count| count.completed == count.posted)?;
                times.push(start.elapsed());
                run.wait(SHORT, &mut count, |count| run.under_way(count) == 0)?;
                if count.posted == TO_WARM_UP as u64 {
                    times.clear();
                    until = Instant::now() + time;
                }
            }
            Ok(())
        })?;
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        Ok([at(50), at(99)])
    }

    /// Messages of a size a second, as many at once as the queues take.
    fn rate(&self, size: usize, time: Duration) -> Result<f64> {
        let mut rate = 0.0;
        self.between(size, |run| {
            let mut count = Count::default();
            let start = Instant::now();
            while count.posted == 0 || start.elapsed() < time {
                while run.under_way(&count) < u64::from(DEPTH) {
                    run.post(size, &mut count)?;
                }
                run.wait(size, &mut count, |count| run.under_way(count) < u64::from(DEPTH))?;
            }
            run.wait(size, &mut count, |count| run.under_way(count) == 0)?;
            rate = count.posted as f64 / start.elapsed().as_secs_f64();
            Ok(())
        })?;
        Ok(rate)
    }

    /// Connects both sides anew, lets messages of a size move, and checks the bytes that arrived and those behind them.
    fn between(&self, size: usize, moves: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let ConnectedSides { left, right, .. } = self.link;
        self.link.half_connect(link::ACCESS)?;
        self.link.finish()?;
        let (mine, theirs) = (fill(&left.region, 0x5a), fill(&right.region, 0xa5));
        if self.operation.receives() {
            (0..DEPTH).try_for_each(|_| self.receive(size))?;
        }
        moves(self)?;
        let (sent, there, before) = match self.operation {
            Operation::Read => (&theirs, &left.region, &mine),
            _ => (&mine, &right.region, &theirs),
        };
        let mut found = vec![0; LARGE];
        there.read(0, &mut found);
        let wrong =
            (0..LARGE).find(|&at| found[at] != if at < size { sent[at] } else { before[at] });
        ensure!(
            wrong.is_none(),
            "byte {} of a message of {size} bytes is wrong",
            wrong.unwrap_or(0)
        );
        Ok(())
    }

    fn receive(&self, size: usize) -> Result<()> {
        let pieces = vec![self.link.right.region.piece(0, size)];
        Ok(self.link.right.qp.post_recv(&Recv { wr_id: 0, pieces })?)
    }

    fn post(&self, size: usize, count: &mut Count) -> Result<()> {
        let ConnectedSides { left, right, .. } = self.link;
        let send = Send {
            wr_id: count.posted,
            operation: self.operation,
            pieces: vec![left.region.piece(0, size)],
            remote: (right.region.address(), right.region.rkey()),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        left.qp.post_send(&[send]).map_err(|(failed, _)| failed)?;
        count.posted += 1;
        Ok(())
    }

    /// Takes completions until a condition holds.
    fn wait(&self, size: usize, count: &mut Count, reached: impl Fn(&Count) -> bool) -> Result<()> {
        let mut deadline = None;
        while !reached(count) {
            if self.take(size, count)? {
                deadline = None;
            } else if let Some(deadline) = deadline {
                ensure!(Instant::now() < deadline, "nothing completes for {LIMIT:?}");
            } else {
                deadline = Some(Instant::now() + LIMIT);
            }
        }
        Ok(())
    }

    /// Takes a completion of each side; whether there was one.
    fn take(&self, size: usize, count: &mut Count) -> Result<bool> {
        let ConnectedSides { left, right, library, .. } = self.link;
        let one = |cq: &crate::ffi::Cq| -> Result<bool> {
            let Some(completion) = cq.poll()? else { return Ok(false) };
            let status = completion.status;
            ensure!(
                status == v::IBV_WC_SUCCESS,
                "a message failed: {}",
                library.status_name(status)
            );
            Ok(true)
        };
        let completed = one(&left.send_cq)?;
        let received = self.operation.receives() && one(&right.receive_cq)?;
        count.completed += u64::from(completed);
        count.received += u64::from(received);
        if received {
            self.receive(size)?;
        }
        Ok(completed || received)
    }

    /// Messages that have not completed yet, or whose receive has not: a message more than there are
    /// receives would have to wait for one.
    fn under_way(&self, count: &Count) -> u64 {
        let received = if self.operation.receives() { count.received } else { count.posted };
        count.posted - count.completed.min(received)
    }
}
