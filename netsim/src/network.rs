//! The network: hosts, switches, frames between them, and virtual time.

use roce::qos::{Buffer, BufferConfig, Watchdog, pfc};
use roce::window::AnyWindow;
use roce::{Event, FramePayload, MacAddr, Priorities, Qpn, SendRequest, Service, Source};
use trial::rng::Rng;

use crate::cable;
use crate::config::{Config, Pattern, Red, Route, SwitchConfig};
use crate::error::Error;
use crate::events::Events;
use crate::flow::{Flow, Message};
use crate::frame::{Frame, Frames, PRIORITIES};
use crate::host::Host;
use crate::memory::{Lengths, Memory};
use crate::port::{Next, Owner, Place, Port, peer};
use crate::results::{Results, Sample};
use crate::route::Routes;
use crate::shape::Plan;
use crate::time::Time;

/// An event that is due at a time.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// The frame that a port sends has left.
    Sent(u32),
    /// The first frame on a port's wire has arrived at its peer, or did before.
    Arrived(u32),
    /// A pause of a port is over.
    Resumed(u32),
    /// A pause is to be said again by a port, for a priority.
    Refresh(u32, u8),
    /// A host receives the frames that have come, and handles timers.
    Wake(u32),
    /// A flow has a message to post.
    Post(u32),
    /// It is time to look at queues and flows.
    Look,
    /// It is time to look for queues that stand still.
    Watch,
}

/// The fates of frames that hosts sent, and of copies of them. Those that are in no number of ends are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkTally {
    /// Frames that hosts sent.
    pub sent: u64,
    /// Copies that switches made of frames to all.
    pub flooded: u64,
    /// Frames that came to hosts.
    pub delivered: u64,
    /// Frames that a switch dropped: it had no room, or their queue stood still for too long.
    pub dropped: u64,
    /// Queues that stood still for too long.
    pub still: u64,
    /// Frames for all that came to a switch without another port.
    pub unroutable: u64,
    /// Faults of cables.
    pub cables: cable::FaultTally,
    /// Pauses sent.
    pub pauses: u64,
    /// Pauses heard.
    pub pauses_heard: u64,
    /// Frames that switches marked "congestion experienced".
    pub marked: u64,
    /// Things that happened.
    pub events: u64,
}

/// A switch.
#[derive(Debug)]
struct Switch {
    buffer: Buffer,
    /// Its ports.
    ports: Vec<u32>,
}

/// Hosts, switches, and the frames between them.
#[derive(Debug)]
pub struct Network<M = Lengths> {
    /// The hosts, by their numbers.
    pub hosts: Vec<Host<M>>,
    now: Time,
    events: Events<Happening>,
    frames: Frames,
    /// Two for each cable: a port's peer has the same number but for the lowest bit.
    ports: Vec<Port>,
    /// The place of each port.
    places: Vec<Place>,
    switches: Vec<Switch>,
    /// The queue lengths at which switches mark packets, if they do.
    red: Option<Red>,
    watchdog: Option<Watchdog>,
    routes: Routes,
    flows: Vec<Flow>,
    tally: NetworkTally,
    results: Results,
    rng: Rng,
    digest: u64,
}

impl Network {
    /// The network and the flows of a description. `windows` says which congestion window a host's queue pairs have, unless
    /// the description does.
    pub fn new(
        config: &Config,
        seed: u64,
        windows: impl Fn(Qpn, Service) -> AnyWindow + Clone + Send + 'static,
    ) -> Result<Self, Error> {
        config.check()?;
        let plan = Plan::new(config);
        check_size(config, &plan)?;
        let mut rng = Rng::new(seed);
        let mut network = Self::build(&plan, &config.switch, &config.routes, rng.next())?;
        for host in &mut network.hosts {
            match &config.congestion {
                Some(congestion) => congestion.set_up(config.host.rate, &mut host.stack)?,
                None => host.stack.set_windows(windows.clone()),
            }
        }
        for traffic in &config.traffic {
            let mut start = Time(0);
            let message = |number: u64, start: Time| {
                let start = start.after(traffic.interval * number);
                Message { bytes: traffic.bytes as u32, start }
            };
            for (from, to) in plan.pairs(config.shape, &traffic.pattern, &mut rng) {
                for _ in 0..traffic.flows {
                    let messages = (0..traffic.messages.into()).map(|it| message(it, start));
                    network.add_flow(from, to, traffic.class, messages.collect());
                    start = start.after(traffic.stagger);
                }
            }
        }
        Ok(network)
    }
}

impl<M: Memory + Default> Network<M> {
    /// The hosts, switches and cables of a plan, without flows: all switches with the same buffer, and `routes` in place
    /// of the shortest.
    pub fn build(
        plan: &Plan,
        switch: &SwitchConfig,
        routes: &[Route],
        seed: u64,
    ) -> Result<Self, Error> {
        let (mut ports, mut places) = (Vec::new(), Vec::new());
        let mut of_switches: Vec<Vec<u32>> = vec![Vec::new(); plan.switches as usize];
        let mut of_hosts = vec![0; plan.hosts as usize];
        for cable in &plan.cables {
            for (owner, link) in cable.ends.into_iter().zip(&cable.links) {
                let number = places.len() as u32;
                let local = match owner {
                    Owner::Host(host) => {
                        of_hosts[host as usize] = number;
                        0
                    }
                    Owner::Switch(switch) => {
                        let own = &mut of_switches[switch as usize];
                        own.push(number);
                        own.len() as u32 - 1
                    }
                };
                ports.push(Port::new(link));
                places.push(Place { owner, local });
            }
        }
        let neighbour = |port: &u32| places[peer(*port) as usize].owner;
        let neighbours =
            of_switches.iter().map(|own| own.iter().map(neighbour).collect()).collect::<Vec<_>>();
        let routes = Routes::new(plan.hosts, &neighbours, routes)?;
        let mut switches = Vec::new();
        for (number, own) in of_switches.into_iter().enumerate() {
            let on_the_cable = |port: &u32| {
                let port: &Port = &ports[*port as usize];
                port.wire.bytes_in(port.delay, Time::SECOND)
            };
            let cables: Vec<u64> = own.iter().map(on_the_cable).collect();
            let buffer = Buffer::new(buffer_config(switch), &cables);
            let (number, total) = (number as u32, switch.buffer);
            let buffer = buffer.ok_or(Error::Buffer { switch: number, total })?;
            switches.push(Switch { buffer, ports: own });
        }
        let hosts = (0..).zip(of_hosts).map(|(number, port)| Host::new(number, port)).collect();
        let watched = plan.watched.iter().map(|cable| 2 * *cable as u32).collect();
        let mut events = Events::default();
        if let Some(watchdog) = switch.watchdog {
            events.push(Time(watchdog.interval()), Happening::Watch);
        }
        Ok(Self {
            hosts,
            now: Time(0),
            events,
            frames: Frames::default(),
            ports,
            places,
            switches,
            red: switch.red,
            watchdog: switch.watchdog,
            routes,
            flows: Vec::new(),
            tally: NetworkTally::default(),
            results: Results { watched, ..Results::default() },
            rng: Rng::new(seed),
            digest: 0xcbf2_9ce4_8422_2325,
        })
    }
}

impl<M: Memory> Network<M> {
    /// Adds a flow between two hosts, and says its number. Messages are in the order of their starts.
    pub fn add_flow(
        &mut self,
        from: u32,
        to: u32,
        traffic_class: u8,
        messages: Vec<Message>,
    ) -> u32 {
        let number = self.flows.len() as u32;
        let qpns = [from, to].map(|host| self.hosts[host as usize].reserve(number));
        if let Some(first) = messages.first() {
            self.events.push(first.start.max(self.now), Happening::Post(number));
        }
        self.flows.push(Flow {
            from,
            to,
            qpns,
            class: traffic_class,
            messages,
            posted: 0,
            ends: Vec::new(),
            sent: 0,
            delivered: 0,
            failed: false,
        });
        number
    }

    /// Makes a flow's queue pairs, and says whether both hosts have room for them.
    fn connect(&mut self, number: u32) -> bool {
        let Flow { from, to, qpns: [writer, target], class, .. } = self.flows[number as usize];
        [(from, writer, (to, target)), (to, target, (from, writer))].into_iter().all(
            |(host, qpn, peer)| {
                self.hosts[host as usize].connect(self.now, qpn, peer, class).is_ok()
            },
        )
    }

    /// Destroys a flow's queue pairs.
    fn disconnect(&mut self, number: u32) {
        let Flow { from, to, qpns: [writer, target], .. } = self.flows[number as usize];
        self.hosts[from as usize].stack.destroy_qp(writer);
        self.hosts[to as usize].stack.destroy_qp(target);
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// The flows, by their numbers.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// The ports: 2·n is the first end of cable n, 2·n + 1 the other one.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// The host or switch that a port belongs to.
    #[must_use]
    pub fn owner(&self, port: u32) -> Owner {
        self.places[port as usize].owner
    }

    /// The ports of a switch.
    #[must_use]
    pub fn ports_of(&self, switch: u32) -> &[u32] {
        &self.switches[switch as usize].ports
    }

    /// The figures seen at each look.
    #[must_use]
    pub const fn results(&self) -> &Results {
        &self.results
    }

    /// The fates of frames.
    #[must_use]
    pub const fn tally(&self) -> NetworkTally {
        self.tally
    }

    /// Frames under way, without pauses.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.frames.live() - (self.tally.pauses - self.tally.pauses_heard)
    }

    /// The most frames that ever were under way at a time, pauses among them.
    #[must_use]
    pub fn most_under_way(&self) -> usize {
        self.frames.most()
    }

    /// A number for all that has happened: the same for the same description and seed.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Bytes in all switches' buffers.
    #[must_use]
    pub fn buffered(&self) -> u64 {
        self.switches.iter().map(|switch| switch.buffer.bytes()).sum()
    }

    /// Looks at queues and flows each so many picoseconds from now on, at least one.
    pub fn look_each(&mut self, interval: u64) {
        self.results.interval = interval.max(1);
        self.look();
    }

    /// Wakes a host as soon as it can be: it receives the frames that have come, handles timers, and sends.
    pub fn wake(&mut self, host: u32) {
        self.wake_at(host, self.now);
    }

    /// Stops a host's work for so many picoseconds, as on a busy machine. Frames go on coming.
    pub fn stall(&mut self, host: u32, time: u64) {
        self.hosts[host as usize].stalled_until = self.now.after(time);
        self.wake(host);
    }

    /// Delivers a frame that no host has sent to a host at a time.
    pub fn inject(&mut self, host: u32, at: Time, frame: Frame) {
        let frame = self.frames.insert(frame);
        self.tally.sent += 1;
        let port = peer(self.hosts[host as usize].port);
        self.fly(port, frame, at.max(self.now));
    }

    /// Lets everything happen up to a time, and that included.
    pub fn run(&mut self, until: Time) {
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    /// Lets the next thing happen, if its time is not after `until`, and says whether one did.
    pub fn step(&mut self, until: Time) -> bool {
        if self.events.advance(until) {
            self.look_ahead();
        }
        let Some((at, happening)) = self.events.pop(until) else { return false };
        self.now = at;
        self.tally.events += 1;
        match happening {
            Happening::Sent(port) => {
                self.ports[port as usize].is_told = false;
                self.send(port);
            }
            Happening::Arrived(port) => self.arrived(port),
            Happening::Resumed(port) => {
                self.ports[port as usize].resumes_at = Time::NEVER;
                self.send(port);
            }
            Happening::Refresh(port, priority) => self.refresh(port, priority),
            Happening::Wake(host) => self.woken(host),
            Happening::Post(flow) => self.post(flow),
            Happening::Look => self.look(),
            Happening::Watch => self.watch(),
        }
        true
    }

    /// Reads what the events of a span are about, all of it before any happens: none of it is in a cache, and reads that do
    /// not depend on each other take the time of one. Without this most of a large network's time goes by waiting for memory.
    fn look_ahead(&self) {
        let seen = self.events.coming().fold(0, |seen, happening| match happening {
            Happening::Arrived(port) => seen ^ self.look_at_arrival(*port),
            Happening::Sent(port) => seen ^ self.look_at_port(*port),
            _ => seen,
        });
        std::hint::black_box(seen);
    }

    /// Reads what the arrival of a port's first frame is about.
    fn look_at_arrival(&self, number: u32) -> u64 {
        let Some(frame) = self.ports[number as usize].first() else { return 0 };
        let Frame { destination, hash, priority, .. } = self.frames[frame];
        let ingress = peer(number);
        let Owner::Switch(switch) = self.owner(ingress) else { return 0 };
        let Some(egress) = self.routes.port(switch, destination, hash) else { return 0 };
        let egress = self.switches[switch as usize].ports[egress];
        self.look_at_share(ingress, priority) ^ self.look_at_port(egress)
    }

    /// Reads what the sending of a port's next frame is about.
    fn look_at_port(&self, number: u32) -> u64 {
        let port = &self.ports[number as usize];
        let Some(frame) = port.front() else { return port.touch(0) };
        let Frame { ingress, priority, .. } = self.frames[frame];
        let seen = port.touch(priority.into());
        // A host's frames came by no port.
        if ingress == u32::MAX { seen } else { seen ^ self.look_at_share(ingress, priority) }
    }

    /// Reads the share that a port has in the buffer of its switch.
    fn look_at_share(&self, ingress: u32, priority: u8) -> u64 {
        let Place { owner, local } = self.places[ingress as usize];
        let Owner::Switch(switch) = owner else { return 0 };
        let buffer = &self.switches[switch as usize].buffer;
        buffer.is_to_refresh(local as usize, priority, 0).into()
    }

    /// Sends a port's next frame, if its wire is free.
    fn send(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        if port.is_told {
            return;
        }
        if port.free_at > self.now {
            port.is_told = true;
            let at = port.free_at;
            self.events.push(at, Happening::Sent(number));
            return;
        }
        let owner = self.owner(number);
        if let Owner::Host(host) = owner {
            self.refill(host, number);
        }
        let port = &mut self.ports[number as usize];
        match port.next(self.now) {
            Next::Pause(frame) => self.leave(number, frame, true),
            Next::Frame(frame, priority) => {
                let Frame { ingress, .. } = self.frames[frame];
                if let Owner::Switch(_) = owner {
                    self.mark(number, frame, priority);
                }
                let size = self.ports[number as usize].take(priority);
                self.leave(number, frame, false);
                if let Owner::Switch(switch) = owner {
                    self.release(switch, ingress, priority, size);
                }
            }
            Next::At(at) if at < port.resumes_at => {
                port.resumes_at = at;
                self.events.push(at, Happening::Resumed(number));
            }
            Next::At(_) | Next::Nothing => {}
        }
        if let Owner::Host(host) = owner {
            self.hear(host);
        }
    }

    /// A frame goes onto a port's wire.
    fn leave(&mut self, number: u32, frame: u32, is_pause: bool) {
        let length = self.frames[frame].wire_length();
        let port = &mut self.ports[number as usize];
        port.free_at = self.now.after(port.wire.time_of(length.into(), Time::SECOND));
        let arrives = port.free_at.after(port.delay);
        if is_pause {
            self.fly(number, frame, arrives);
        } else {
            self.carry(number, frame, arrives);
        }
        let port = &mut self.ports[number as usize];
        // A host is asked for more then, even if frames wait now.
        if !port.is_empty() || matches!(self.places[number as usize].owner, Owner::Host(_)) {
            port.is_told = true;
            let at = port.free_at;
            self.events.push(at, Happening::Sent(number));
        }
    }

    /// A frame is on a port's wire until it arrives.
    fn fly(&mut self, number: u32, frame: u32, arrives: Time) {
        if self.ports[number as usize].fly(arrives, frame) {
            self.events.push(arrives, Happening::Arrived(number));
        }
    }

    /// Puts a frame onto a wire, with the cable's faults.
    fn carry(&mut self, number: u32, frame: u32, arrives: Time) {
        if let Owner::Host(host) = self.owner(number) {
            let memory = &mut self.hosts[host as usize].memory;
            if !memory.sees_off(host, self.now, &mut self.frames[frame]) {
                self.tally.cables.lost += 1;
                self.frames.remove(frame);
                return;
            }
        }
        let port = &mut self.ports[number as usize];
        let Some(faults) = &port.faults else { return self.fly(number, frame, arrives) };
        let (last, tally) = (&mut port.last, &mut self.tally.cables);
        let carried = faults.carry(&mut self.rng, arrives, last, &mut self.frames[frame], tally);
        match carried.arrives {
            Some(arrives) => self.fly(number, frame, arrives),
            None => self.frames.remove(frame),
        }
        if let Some((arrives, copy)) = carried.copy {
            let copy = self.frames.insert(copy);
            self.fly(number, copy, arrives);
        }
    }

    /// Fills a host's port up to one burst of each priority: frames beyond that wait out a pause in the transport.
    fn refill(&mut self, number: u32, port: u32) {
        let (host, port) = (&mut self.hosts[number as usize], &mut self.ports[port as usize]);
        let open = port.open();
        if open == Priorities::default() || host.off || self.now < host.stalled_until {
            return;
        }
        let (flows, frames) = (&mut self.flows, &mut self.frames);
        let mut given = 0;
        let hears_itself = host.transmit(self.now, open, |flow, payload, frame, priority| {
            if let (Some(flow), Some(FramePayload { source: Source::Message { .. }, length, .. })) =
                (flow, payload)
            {
                flows[flow as usize].sent += u64::from(*length);
            }
            let size = frame.size();
            port.push(frames.insert(frame), priority.into(), size);
            given += 1;
        });
        self.tally.sent += given;
        if hears_itself {
            self.wake_at(number, self.now.after(1_000));
        }
        self.wake_in_time(number);
    }

    /// The first frame on a port's wire has arrived.
    fn arrived(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        let Some((frame, next)) = port.land(self.now) else { return };
        if let Some(next) = next {
            self.events.push(next, Happening::Arrived(number));
        }
        let ingress = peer(number);
        let seen = self.now.0 ^ u64::from(number) << 40 ^ u64::from(self.frames[frame].hash);
        self.digest = (self.digest ^ seen).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        if self.frames[frame].destination == Frame::NOWHERE {
            if let Some(said) = pfc::parse(self.frames[frame].header()) {
                self.frames.remove(frame);
                self.tally.pauses_heard += 1;
                self.heed(ingress, &said);
                return;
            }
        }
        match self.owner(ingress) {
            Owner::Host(host) => self.receive(host, frame),
            Owner::Switch(switch) => self.forward(switch, ingress, frame),
        }
    }

    /// A port heeds a pause.
    fn heed(&mut self, number: u32, said: &[Option<u16>; PRIORITIES]) {
        let port = &mut self.ports[number as usize];
        for (priority, quanta) in said.iter().enumerate() {
            if let Some(quanta) = quanta {
                let pause = pfc::duration(*quanta, port.wire.bits(), Time::SECOND);
                port.hold(priority, self.now.after(pause));
                if let Some(watchdog) = self.watchdog.filter(|_| *quanta != 0) {
                    port.go_on_dropping(priority, self.now, watchdog.recover);
                }
            }
        }
        self.send(number);
    }

    /// A frame has come to a host.
    fn receive(&mut self, number: u32, frame: u32) {
        let host = &mut self.hosts[number as usize];
        let (is_off, at) = (host.off, self.now.after(host.pace.sleep));
        if !is_off {
            host.take(&self.frames[frame]);
        }
        self.frames.remove(frame);
        self.tally.delivered += 1;
        if is_off {
            return;
        }
        if at == self.now && at >= self.hosts[number as usize].stalled_until {
            self.round(number);
        } else {
            self.wake_at(number, at);
        }
    }

    /// Runs a host's round: it receives the frames that have come, handles timers, and sends.
    fn round(&mut self, number: u32) {
        let host = &mut self.hosts[number as usize];
        let flows = &mut self.flows;
        host.round(self.now, |flow, placement| {
            if let Some(flow) = flow {
                flows[flow as usize].delivered += placement.range.len() as u64;
            }
        });
        self.hear(number);
        self.send(self.hosts[number as usize].port);
        self.wake_in_time(number);
    }

    /// Hands a host's events to their flows, or keeps them for the caller.
    fn hear(&mut self, number: u32) {
        loop {
            let host = &mut self.hosts[number as usize];
            let Some(event) = host.stack.poll_event() else { return };
            let Some(flow) = host.flow(event.qpn()) else {
                host.events.push(event);
                continue;
            };
            match event {
                Event::SendsCompleted { through, .. } => {
                    let complete = through as usize + 1;
                    let flow_state = &mut self.flows[flow as usize];
                    flow_state.ends.resize(complete.min(flow_state.posted), self.now);
                    if flow_state.ends.len() == flow_state.messages.len() {
                        self.disconnect(flow);
                    } else {
                        self.post(flow);
                    }
                }
                Event::SendFailed { .. } | Event::EnteredError { .. } => {
                    self.flows[flow as usize].failed = true;
                }
                Event::ReceiveCompleted { .. }
                | Event::ReceiveFailed { .. }
                | Event::Async { .. } => {}
            }
        }
    }

    /// Sets the time at which a host's transport needs to be woken.
    fn wake_in_time(&mut self, number: u32) {
        let host = &mut self.hosts[number as usize];
        let Some(due) = host.stack.next_timeout() else { return };
        let at = Time::from(due).max(Time::from_nanos(self.now.nanos() + 1));
        self.wake_at(number, at);
    }

    fn wake_at(&mut self, number: u32, at: Time) {
        let host = &mut self.hosts[number as usize];
        let at = at.max(host.stalled_until);
        if at < host.wakes_at {
            host.wakes_at = at;
            self.events.push(at, Happening::Wake(number));
        }
    }

    /// A host goes on, if this is still its time.
    fn woken(&mut self, number: u32) {
        let host = &mut self.hosts[number as usize];
        if host.wakes_at != self.now {
            return;
        }
        host.wakes_at = Time::NEVER;
        if host.stalled_until > self.now {
            self.wake_at(number, self.now);
        } else if !host.off {
            self.round(number);
        }
    }

    /// A flow posts the messages whose time has come, as far as there is room.
    fn post(&mut self, number: u32) {
        if self.flows[number as usize].posted == 0 && !self.connect(number) {
            self.flows[number as usize].failed = true;
        }
        let flow = &mut self.flows[number as usize];
        let host = &mut self.hosts[flow.from as usize];
        let mut posted = false;
        while let Some(message) = flow.messages.get(flow.posted) {
            if message.start > self.now {
                // Asked for once for each time: by the post of the message before it.
                if posted {
                    self.events.push(message.start, Happening::Post(number));
                }
                break;
            }
            let request = SendRequest::write(message.bytes, 0, 1);
            if flow.failed
                || host.stack.post_send(self.now.instant(), flow.qpns[0], request).is_err()
            {
                break;
            }
            flow.posted += 1;
            posted = true;
        }
        if posted {
            let (port, from) = (host.port, flow.from);
            self.send(port);
            self.wake_in_time(from);
        }
    }

    /// Forwards a frame in a switch: to its host, or to all if it is for a group or for an unknown host.
    fn forward(&mut self, number: u32, ingress: u32, frame: u32) {
        let Frame { destination, hash, .. } = self.frames[frame];
        if let Some(egress) = self.routes.port(number, destination, hash) {
            return self.queue(number, (ingress, egress), frame);
        }
        let own = self.places[ingress as usize].local as usize;
        let others: Vec<usize> = self
            .routes
            .flood(number)
            .iter()
            .map(|port| usize::from(*port))
            .filter(|port| *port != own)
            .collect();
        let Some((last, others)) = others.split_last() else {
            self.frames.remove(frame);
            self.tally.unroutable += 1;
            return;
        };
        for egress in others {
            let copy = self.frames[frame].clone();
            let copy = self.frames.insert(copy);
            self.tally.flooded += 1;
            self.queue(number, (ingress, *egress), copy);
        }
        self.queue(number, (ingress, *last), frame);
    }

    /// A switch has a frame wait for one of its ports, or drops it.
    fn queue(&mut self, number: u32, (ingress, egress): (u32, usize), frame: u32) {
        let priority = usize::from(self.frames[frame].priority);
        let size = self.frames[frame].size();
        let switch = &mut self.switches[number as usize];
        let egress = switch.ports[egress];
        let local = self.places[ingress as usize].local as usize;
        let to = &self.ports[egress as usize];
        let (waiting, drops) = (to.queue(priority).bytes, to.drops(priority, self.now));
        if drops || !switch.buffer.admit(local, priority as u8, size, waiting) {
            self.frames.remove(frame);
            self.tally.dropped += 1;
            return;
        }
        let pauses = switch.buffer.pauses(local, priority as u8);
        self.frames[frame].ingress = ingress;
        self.ports[egress as usize].push(frame, priority, size);
        if pauses {
            self.pause(number, ingress, priority);
        }
        self.send(egress);
    }

    /// A switch marks a frame that is about to leave a long queue.
    fn mark(&mut self, port: u32, frame: u32, priority: usize) {
        let Some(red) = self.red else { return };
        let port = &mut self.ports[port as usize];
        let waiting = port.queue(priority).bytes;
        if red.marks(waiting, &mut self.rng) && self.frames[frame].mark() {
            port.tally.marked += 1;
            self.tally.marked += 1;
        }
    }

    /// A frame that came by port `ingress` has left a switch's buffer.
    fn release(&mut self, switch: u32, ingress: u32, priority: usize, size: u32) {
        let local = self.places[ingress as usize].local as usize;
        let buffer = &mut self.switches[switch as usize].buffer;
        buffer.release(local, priority as u8, size);
        if buffer.resumes(local, priority as u8) {
            self.say(ingress, priority, 0);
        }
    }

    /// A switch pauses the peer of a port, and will say so again before that is over.
    fn pause(&mut self, switch: u32, port: u32, priority: usize) {
        let (wire, local) =
            (&self.ports[port as usize].wire, self.places[port as usize].local as usize);
        let again = self.now.after(pfc::duration(pfc::LONGEST / 2, wire.bits(), Time::SECOND));
        self.switches[switch as usize].buffer.refresh_at(local, priority as u8, again.0);
        self.events.push(again, Happening::Refresh(port, priority as u8));
        self.say(port, priority, pfc::LONGEST);
    }

    /// A pause is said again, if it still holds.
    fn refresh(&mut self, number: u32, priority: u8) {
        let Place { owner: Owner::Switch(switch), local } = self.places[number as usize] else {
            return;
        };
        let buffer = &self.switches[switch as usize].buffer;
        if buffer.is_to_refresh(local as usize, priority, self.now.0) {
            self.pause(switch, number, priority.into());
        }
    }

    /// A port says to its peer for how many quanta it is to pause.
    fn say(&mut self, port: u32, priority: usize, quanta: u16) {
        let pause = pfc::frame(SWITCH, priority as u8, quanta);
        let pause = Frame::new(&pause, pause.len());
        let frame = self.frames.insert(pause);
        self.tally.pauses += 1;
        self.ports[port as usize].push_pause(frame);
        self.send(port);
    }

    /// Lets the frames of queues go that stand still.
    fn watch(&mut self) {
        let Some(watchdog) = self.watchdog else { return };
        for number in 0..self.ports.len() as u32 {
            let Owner::Switch(switch) = self.owner(number) else { continue };
            for priority in 0..PRIORITIES {
                let port = &mut self.ports[number as usize];
                if port.stands_still(priority, self.now, watchdog) {
                    self.tally.still += 1;
                    self.discard(switch, number, priority);
                }
            }
        }
        self.events.push(self.now.after(watchdog.interval()), Happening::Watch);
    }

    /// A switch drops all that waits in a queue.
    fn discard(&mut self, switch: u32, number: u32, priority: usize) {
        while let Some((frame, size)) = self.ports[number as usize].discard(priority) {
            let Frame { ingress, .. } = self.frames[frame];
            self.frames.remove(frame);
            self.tally.dropped += 1;
            self.release(switch, ingress, priority, size);
        }
    }

    /// Records the lengths of queues and the rates of flows.
    fn look(&mut self) {
        let queues = self.results.watched.iter();
        let queues = queues.map(|port| self.ports[*port as usize].waiting_bytes()).collect();
        let flows = self.flows.iter().map(|flow| (flow.sent, flow.delivered)).collect();
        self.results.samples.push(Sample { at: self.now, queues, flows });
        self.events.push(self.now.after(self.results.interval), Happening::Look);
    }
}

/// The address that switches pause from.
const SWITCH: MacAddr = MacAddr([2, 1, 0, 0, 0, 0]);

/// Flows of a network at most, and their messages.
const MOST_FLOWS: u64 = 1 << 20;
const MOST_MESSAGES: u64 = 1 << 25;

/// Refuses traffic between hosts that are none, and more than there is memory for.
fn check_size(config: &Config, plan: &Plan) -> Result<(), Error> {
    let hosts = plan.hosts;
    let (mut flows, mut messages) = (0_u64, 0_u64);
    for traffic in &config.traffic {
        if let Pattern::Pairs(pairs) = &traffic.pattern {
            if let Some(&[from, to]) = pairs.iter().find(|[a, b]| a == b || *a.max(b) >= hosts) {
                return Err(Error::Pair { from, to, hosts });
            }
        }
        let its = plan.count(&traffic.pattern) * u64::from(traffic.flows);
        flows = flows.saturating_add(its);
        messages = messages.saturating_add(its * u64::from(traffic.messages));
    }
    if flows > MOST_FLOWS {
        let range = "1,048,576 at most";
        return Err(Error::Range { what: "the number of flows", value: flows, range });
    }
    if messages > MOST_MESSAGES {
        let range = "33,554,432 at most";
        return Err(Error::Range { what: "the number of messages", value: messages, range });
    }
    let counted = config.bars.iter().flat_map(|bars| &bars.flows).copied().max();
    if let Some(flow) = counted.filter(|flow| u64::from(*flow) >= flows) {
        let range = "one of the network's";
        return Err(Error::Range { what: "a bar's flow", value: flow.into(), range });
    }
    Ok(())
}

fn buffer_config(config: &SwitchConfig) -> BufferConfig {
    BufferConfig {
        total: config.buffer,
        reserve: config.reserve,
        lossless: config.pfc.iter().fold(0, |set, priority| set | 1 << priority),
    }
}
