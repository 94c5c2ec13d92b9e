//! Random networks: programs that connect, accept, refuse, give up and disconnect at random times.
//!
//! On a network that only loses, duplicates and delays, each connection is there on both sides or on
//! none. On one that is cut for minutes as well, all of it comes to an end. Nothing is left behind.

use std::collections::BTreeMap;
use std::time::Duration;

use cm::wire::{RejectReason, SidrStatus};
use cm::{Answer, Event, EventKind, Id, Instant, Limits, Offer, PortSpace, Resolve, State, param};

use crate::world::{Faults, OWNER, SERVICE, World, accepts};
use trial::rng::Rng;

/// What a program will do.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Accept,
    Reject,
    Ready,
    Answer,
    Disconnect,
    Destroy,
}

/// What became of a connection on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Pending,
    There,
    Failed,
}

struct Programs {
    world: World,
    rng: Rng,
    plans: BTreeMap<(Instant, u64), (usize, Id, Plan)>,
    /// By the queue pair of the side that asks: how it went on either side.
    outcomes: BTreeMap<u32, [Outcome; 2]>,
    /// The queue pair of the side that asks, and which side this is.
    roles: BTreeMap<(usize, Id), (u32, usize)>,
    /// Whether programs disconnect by themselves.
    ends: bool,
    number: u64,
    qpn: u32,
}

impl Programs {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = rng.between(2, 4) as usize;
        let mut world = World::seeded(nodes, seed, Limits::default());
        world.faults = Faults {
            loss: rng.pick(&[0, 100, 1000, 2500]),
            duplicate: rng.pick(&[0, 500, 3000]),
            late: rng.pick(&[0, 500, 3000]),
        };
        for node in 0..nodes {
            let backlog = rng.between(1, 20) as usize;
            world.listen(node, backlog);
            world.listen_for(node, PortSpace::Udp, Offer::Datagrams, backlog);
        }
        Self {
            world,
            rng,
            plans: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            roles: BTreeMap::new(),
            ends: false,
            number: 0,
            qpn: 100,
        }
    }

    fn plan(&mut self, node: usize, id: Id, plan: Plan) {
        let wait = match self.rng.below(10) {
            0 => self.rng.below(8_000),
            1..=4 => self.rng.below(100),
            _ => 0,
        };
        let at = self.world.now.after(Duration::from_millis(wait));
        self.number += 1;
        self.plans.insert((at, self.number), (node, id, plan));
    }

    fn ask(&mut self) {
        let nodes = self.world.nodes.len() as u64;
        let from = self.rng.below(nodes) as usize;
        let to = self.rng.below(nodes) as usize;
        if self.rng.chance(2000) {
            let question = Resolve {
                path: self.world.path(from, to),
                space: PortSpace::Udp,
                source_port: 1,
                destination_port: SERVICE,
                response_timeout: 20,
                max_cm_retries: 15,
                private_data: &[],
            };
            self.world.call(from, |manager, now| manager.resolve(now, OWNER, &question)).unwrap();
            return;
        }
        self.qpn += 1;
        let id = self.world.connect(from, to, self.qpn);
        self.outcomes.insert(self.qpn, [Outcome::Pending; 2]);
        self.roles.insert((from, id), (self.qpn, 0));
        if self.rng.chance(500) {
            self.plan(from, id, Plan::Destroy);
        }
    }

    fn became(&mut self, node: usize, id: Id, outcome: Outcome) {
        let Some((qpn, side)) = self.roles.get(&(node, id)) else { return };
        self.outcomes.get_mut(qpn).unwrap()[*side] = outcome;
    }

    fn told(&mut self, node: usize, event: Event) {
        let id = event.id;
        match event.kind {
            EventKind::ConnectRequest(request) => {
                self.roles.insert((node, id), (request.remote_qpn, 1));
                self.became(node, id, Outcome::Pending);
                let plan = match self.rng.below(20) {
                    0 => Plan::Reject,
                    1 => Plan::Destroy,
                    _ => Plan::Accept,
                };
                self.plan(node, id, plan);
            }
            EventKind::ConnectResponse(_) => {
                let plan = match self.rng.below(20) {
                    0 => Plan::Reject,
                    1 => Plan::Destroy,
                    _ => Plan::Ready,
                };
                self.plan(node, id, plan);
            }
            EventKind::ResolveRequest(_) => {
                let plan = if self.rng.chance(9000) { Plan::Answer } else { Plan::Destroy };
                self.plan(node, id, plan);
            }
            EventKind::Established { .. } => {
                self.became(node, id, Outcome::There);
                self.end(node, id);
            }
            EventKind::Disconnected { .. } => {
                self.became(node, id, Outcome::Failed);
                let plan = if self.rng.chance(5000) { Plan::Disconnect } else { Plan::Destroy };
                self.plan(node, id, plan);
            }
            EventKind::Rejected(_)
            | EventKind::Unreachable
            | EventKind::TimeWaitExit
            | EventKind::Resolved(_) => {
                self.became(node, id, Outcome::Failed);
                self.plan(node, id, Plan::Destroy);
            }
        }
    }

    /// Has a program end its connection, if it does that.
    fn end(&mut self, node: usize, id: Id) {
        if self.ends {
            let plan = if self.rng.chance(7000) { Plan::Disconnect } else { Plan::Destroy };
            self.plan(node, id, plan);
        }
    }

    fn act(&mut self, node: usize, id: Id, plan: Plan) {
        if self.world.nodes[node].manager.state(id).is_none() {
            return;
        }
        self.qpn += 1;
        let accept = accepts(self.qpn);
        let here = Answer {
            status: SidrStatus::VALID,
            qpn: self.qpn,
            qkey: param::UDP_QKEY,
            private_data: &[],
        };
        let done = self.world.call(node, |manager, now| match plan {
            Plan::Accept => manager.accept(now, id, &accept),
            Plan::Reject => manager.reject(now, id, RejectReason::CONSUMER, &[], &[]),
            Plan::Ready => manager.ready(now, id, &[]),
            Plan::Answer => manager.answer(now, id, &here),
            Plan::Disconnect => manager.disconnect(now, id, &[]),
            Plan::Destroy => manager.destroy(now, id),
        });
        match (plan, done) {
            (Plan::Ready, Ok(())) => {
                self.became(node, id, Outcome::There);
                self.end(node, id);
            }
            (Plan::Accept, Ok(())) => {}
            (Plan::Disconnect, Ok(())) => self.became(node, id, Outcome::Failed),
            (Plan::Reject | Plan::Answer, Ok(())) => {
                self.became(node, id, Outcome::Failed);
                self.plan(node, id, Plan::Destroy);
            }
            (Plan::Destroy, done) => {
                done.unwrap();
                self.became(node, id, Outcome::Failed);
            }
            // The peer was faster, and the event about that is there already.
            (_, Err(_)) => {}
        }
    }

    /// Runs until nothing happens any more, or until `end`.
    fn run(&mut self, end: Instant) {
        for steps in 0.. {
            assert!(steps < 200_000, "it never ends");
            for node in 0..self.world.nodes.len() {
                while let Some(event) = self.world.nodes[node].events.pop_front() {
                    self.told(node, event);
                }
            }
            let planned = self.plans.keys().next().map(|(at, _)| *at).filter(|at| *at <= end);
            let until = planned.unwrap_or(end);
            if self.world.step(until) {
                continue;
            }
            let Some(entry) = self.plans.first_entry().filter(|_| planned.is_some()) else { break };
            self.world.now = self.world.now.max(entry.key().0);
            let (node, id, plan) = entry.remove();
            self.act(node, id, plan);
        }
    }

    fn finish(&mut self) {
        self.run(Instant(u64::MAX));
        // Whoever has not heard of an end, as where a refusal was lost, finds out by its packets.
        self.ends = true;
        let ids: Vec<(usize, Id)> = self.roles.keys().copied().collect();
        for (node, id) in ids {
            match self.world.nodes[node].manager.state(id) {
                Some(State::Established) => self.end(node, id),
                Some(_) => self.plan(node, id, Plan::Destroy),
                None => {}
            }
        }
        self.run(Instant(u64::MAX));
        assert!(self.world.is_empty(), "something is left");
        self.world.nodes.iter().for_each(|node| {
            assert_eq!(node.manager.census().2, 2, "bindings stay");
        });
    }
}

fn for_each_seed(scenario: impl Fn(u64)) {
    let number = |variable: &str| {
        let text = std::env::var(variable).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
    };
    let seeds = match number("CM_SIM_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("CM_SIM_SEEDS").unwrap_or(1000),
    };
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| scenario(seed));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("repeat with: CM_SIM_SEED={seed} cargo test -p cm --test sim random");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn each_connection_is_there_on_both_sides_or_on_none() {
    for_each_seed(|seed| {
        let mut programs = Programs::new(seed);
        for _ in 0..programs.rng.between(1, 25) {
            programs.ask();
            let wait = programs.rng.below(50);
            let end = programs.world.now.after(Duration::from_millis(wait));
            programs.run(end);
        }
        programs.run(Instant(u64::MAX));
        let mut there = 0;
        for (qpn, outcome) in &programs.outcomes {
            // A side that was never asked has not got there.
            let [active, passive] = outcome.map(|side| side == Outcome::There);
            assert_eq!(active, passive, "of queue pair {qpn}: {outcome:?}");
            there += u32::from(active);
        }
        let faults = programs.world.faults;
        let good = faults.loss == 0 && programs.outcomes.len() > 15;
        assert!(there > 0 || !good, "nothing was ever connected");
        programs.finish();
    });
}

#[test]
fn where_the_network_is_cut_everything_comes_to_an_end() {
    for_each_seed(|seed| {
        let mut programs = Programs::new(seed ^ 0xffff_0000);
        programs.ends = true;
        for _ in 0..programs.rng.between(1, 15) {
            programs.ask();
            if programs.rng.chance(2000) {
                let faults = programs.world.faults;
                programs.world.faults.loss = 10_000;
                let cut = programs.rng.below(200);
                let end = programs.world.now.after(Duration::from_secs(cut));
                programs.run(end);
                programs.world.faults = faults;
            }
            let wait = programs.rng.below(1000);
            let end = programs.world.now.after(Duration::from_millis(wait));
            programs.run(end);
        }
        programs.finish();
    });
}
