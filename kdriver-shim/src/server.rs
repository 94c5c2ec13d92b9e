//! The control thread: one epoll set over listener, clients, news of engines and full sockets.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostmem::HandOver;
use hostmem::fdpass::{self, Wait};
use hostmem::hand_over::LOOKS;
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use shim_abi::{Hello, MAX_MESSAGE, Refusal, Reply, Request, Response, Role};

use crate::aside::Aside;
use crate::cards::{Card, find};
use crate::clients::{Client, Stage};
use crate::cm::ConnectionManager;
use crate::cm::network::CardsOfServer;
use crate::error::Error;
use crate::events::{self, Clients};
use crate::flasher::{self, Flasher};
use crate::freed::Freed;
use crate::host_ports::HostPorts;
use crate::images::examiner::Examined;
use crate::lease::Lease;
use crate::metrics::{Endpoint, Metrics, page};
use crate::numbers::Numbers;
use crate::objects::Channel;
use crate::peer;
use crate::poller::{Poller, Token, Watch};
use crate::process::{ClientId, Process};
use crate::reception::Reception;
use crate::rings::RingMemory;
use crate::service::Watchdog;
use crate::session::{Progress, Session, changes_port};
use crate::state_dir::StateDir;
use crate::surroundings::{CardNews, Surroundings};

mod anew;
mod connections;
mod host;
mod surveys;
mod turns;

use surveys::Surveys;

/// Connections served at a time, tools and processes without a doorbell page among them.
const MAX_CONNECTIONS: usize = 1024;
/// Connections of one process at a time; a verbs program has one, a tool one for each question.
const MAX_OF_PROCESS: usize = 256;
/// Connections before their greeting; one more ends the oldest of them.
const MAX_GREETING: usize = 64;

/// Everything balboad knows, and the thread that acts on it.
pub struct Server {
    cards: Vec<Card>,
    clients: Clients,
    poller: Arc<Poller>,
    reception: Reception,
    // The listeners to the cards.
    news: CardNews,
    // The thread that asks about programs and closes sockets, both of which may hang.
    aside: Aside,
    pd_blocks: Numbers,
    uid: u32,
    state_dir: PathBuf,
    // The ports in the host's view, and the host's ports that they follow.
    ports: HostPorts,
    // With its place in the epoll set.
    metrics: Option<(Metrics, Watch)>,
    watchdog: Option<Watchdog>,
    // Where this ends with the last program.
    lease: Option<Lease>,
    // The words of the command line.
    options: Vec<String>,
    connections: ConnectionManager,
    // Clients that end, in the order of their turns.
    ending: VecDeque<ClientId>,
    // Clients whose request goes on, in the order of their turns.
    put_off: VecDeque<ClientId>,
    // The clients that ask for the status, and the survey under way.
    surveys: Surveys,
    // Clients with ring memory to be freed, in the order of their turns.
    untidy: VecDeque<ClientId>,
    // Memory behind clients and connections that have ended.
    freed: Freed,
    // The loader of images into cards.
    flasher: Flasher,
    // Room for one message, kept between two.
    buffer: Vec<u8>,
    // When the last message of a client was taken, and whether the core is handed over while the next is looked for.
    heard: Instant,
    hand_over: HandOver,
}

impl Server {
    /// A server of `cards` on a listening socket, for processes of user `uid`.
    ///
    /// # Errors
    /// [`Error::Os`] when the epoll set cannot be made, [`Error::StateDir`] when the ports'
    /// files cannot.
    pub fn new(
        mut cards: Vec<Card>,
        listener: OwnedFd,
        uid: u32,
        state: &StateDir,
    ) -> Result<Self, Error> {
        let poller = Arc::new(Poller::new()?);
        let reception = Reception::new(Arc::clone(&poller), listener)?;
        let mut news = CardNews::new(Arc::clone(&poller));
        for card in &cards {
            news.hear(card)?;
        }
        let aside = Aside::new()?;
        poller.watch(&aside, Token::Answers, EpollFlags::EPOLLIN)?;
        let ports = HostPorts::new(state, &mut cards)?;
        let flasher = Flasher::new(state)?;
        poller.watch(&flasher, Token::Images, EpollFlags::EPOLLIN)?;
        let mut server = Self {
            cards,
            clients: BTreeMap::new(),
            poller,
            reception,
            news,
            aside,
            pd_blocks: Numbers::default(),
            uid,
            state_dir: state.path().to_owned(),
            ports,
            metrics: None,
            watchdog: None,
            lease: None,
            options: Vec::new(),
            connections: ConnectionManager::new(),
            ending: VecDeque::new(),
            put_off: VecDeque::new(),
            surveys: Surveys::default(),
            untidy: VecDeque::new(),
            freed: Freed::default(),
            flasher,
            buffer: Vec::new(),
            heard: Instant::now(),
            hand_over: HandOver::new(),
        };
        server.tell_ports();
        // No port numbers segments yet.
        server.connections.set_presence(env!("CARGO_PKG_VERSION"), 0);
        Ok(server)
    }

    /// Shows metrics there, or nowhere; ends the earlier endpoint.
    ///
    /// # Errors
    /// [`Error::Metrics`], and they are shown where they were.
    pub fn show_metrics(&mut self, endpoint: Option<&Endpoint>) -> Result<(), Error> {
        let shown = match endpoint.map(Metrics::start).transpose()? {
            Some(metrics) => {
                let watch = self.poller.watch(&metrics, Token::Metrics, EpollFlags::EPOLLIN)?;
                log::info!("metrics are shown at {}", metrics.endpoint());
                Some((metrics, watch))
            }
            None => None,
        };
        if let Some((before, watch)) = std::mem::replace(&mut self.metrics, shown) {
            self.poller.unwatch(&before, watch);
        }
        Ok(())
    }

    /// Gives a watchdog the rounds of this thread.
    pub fn feed(&mut self, watchdog: Option<Watchdog>) {
        self.watchdog = watchdog;
    }

    /// Ends balboad with the last program that holds the lease or is connected.
    pub fn end_with(&mut self, lease: Option<Lease>) {
        self.lease = lease;
    }

    /// Takes the words of the command line, which tools are told as far as [`shim_abi::MAX_OPTIONS`] bytes go.
    pub fn was_told(&mut self, words: impl Iterator<Item = String>) {
        let mut room = shim_abi::MAX_OPTIONS;
        self.options.extend(words.map_while(|word| {
            room = room.checked_sub(word.len().saturating_add(8))?;
            Some(word)
        }));
    }

    /// Serves until `signals` is readable and `heard`, which it then calls, says that it is to end, or until no program
    /// holds the lease; then ends every client.
    ///
    /// # Errors
    /// [`Error::Os`] when the epoll set fails; clients are ended in that case too.
    pub fn run(
        &mut self,
        signals: BorrowedFd<'_>,
        mut heard: impl FnMut(&mut Self) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let watch = self.poller.watch(signals, Token::Signals, EpollFlags::EPOLLIN)?;
        let result = loop {
            match self.serve() {
                Ok(Heard::Signal) if heard(self).is_continue() => {}
                outcome => break outcome.map(drop),
            }
        };
        self.poller.unwatch(signals, watch);
        let clients: Vec<_> = self.clients.keys().copied().collect();
        for id in clients {
            self.end(id, "balboad stops");
        }
        while let Some(id) = self.ending.pop_front() {
            self.go_on_ending(id);
        }
        while self.connections.is_ending() {
            self.tend_connections();
        }
        // A card that is given an image gets all of it; it has an end, for each chunk has one.
        while let Some(patience) = self.flasher.patience() {
            std::thread::sleep(patience);
            self.tend_connections();
            self.go_on_flashing();
        }
        result
    }

    fn serve(&mut self) -> Result<Heard, Error> {
        loop {
            let now = Instant::now();
            let ports = self.ports.patience(self.has_programs(), now);
            let due = self.connections.patience();
            let fed = self.watchdog.as_ref().map(|watchdog| watchdog.patience(now));
            let leased = self.lease.as_ref().map(|lease| lease.patience(now));
            let due = due.into_iter().chain(fed).chain(leased);
            let patience = ports.into_iter().chain(due).min();
            if !self.step(patience)? {
                return Ok(Heard::Signal);
            }
            self.follow_addresses();
            self.follow_machine();
            let now = Instant::now();
            self.write_ports(now);
            if let Some(watchdog) = &mut self.watchdog {
                watchdog.feed(now);
            }
            let is_used = self.is_used();
            if self.lease.as_mut().is_some_and(|lease| lease.is_over(is_used, now)) {
                log::info!("no program is left: balboad stops");
                return Ok(Heard::Lease);
            }
        }
    }

    /// Whether a program is connected, or a tool waits for running work.
    fn is_used(&self) -> bool {
        let is_program = |it: &Client| matches!(it.stage, Stage::Examined | Stage::Provider);
        let tended = self.flasher.is_used() || !self.put_off.is_empty();
        tended || self.clients.values().any(is_program)
    }

    fn has_programs(&self) -> bool {
        self.clients.values().any(|client| client.stage == Stage::Provider)
    }

    /// Waits, at most that long, and serves ready descriptors; false when it is to stop.
    ///
    /// # Errors
    /// [`Error::Os`] when the epoll set fails.
    pub fn step(&mut self, patience: Option<Duration>) -> Result<bool, Error> {
        let at_once = self.has_work().then_some(Duration::ZERO);
        let pause = self.reception.patience();
        let flash = self.flasher.patience();
        let patience = [patience, at_once, pause, flash].into_iter().flatten().min();
        // Rounded up: waking too early is waking twice.
        let milliseconds = patience.map(|it| it.as_micros().div_ceil(1000));
        let timeout = milliseconds.map(|it| u16::try_from(it).unwrap_or(u16::MAX));
        for (number, flags) in self.wait(timeout)? {
            // Taken out meanwhile: its client ended earlier in this round.
            let Some(token) = self.poller.token(number) else { continue };
            if token == Token::Signals {
                return Ok(false);
            }
            self.ready(token, flags);
        }
        self.look_for_datagrams();
        self.work();
        events::dispatch(&mut self.cards, &self.clients);
        self.reception.resume_in_time();
        Ok(true)
    }

    /// Waits for ready descriptors, at most that many milliseconds, and looks for them at first where a client was heard: a
    /// program that sets up its queues asks again at once, and a wake-up takes longer than most requests.
    fn wait(&self, timeout: Option<u16>) -> Result<Vec<(u64, EpollFlags)>, Error> {
        // It looks before it hands its core over: the next request is often there.
        while timeout != Some(0) && self.heard.elapsed() < LOOKS {
            let ready = self.poller.wait(Some(0))?;
            if !ready.is_empty() {
                return Ok(ready);
            }
            if !self.hand_over.looks_again(self.heard.elapsed()) {
                break;
            }
        }
        self.poller.wait(timeout)
    }

    fn ready(&mut self, token: Token, flags: EpollFlags) {
        let gone = flags.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        self.ports.stir();
        match token {
            Token::Listener => self.accept(),
            // The addresses are looked at behind every round.
            Token::Signals | Token::Addresses | Token::Machine => {}
            Token::Control(id) => self.control(id),
            Token::Process(id) => self.end(id, "its process ended"),
            Token::Channel(id, number) => {
                let Some(client) = self.clients.get_mut(&id) else { return };
                if gone {
                    // It may be one that has just been closed.
                    let _ = client.destroy::<Channel>(&mut self.cards, number);
                } else if let Some(channel) = client.owned.channels.get(&number) {
                    channel.records.flush();
                }
            }
            Token::Async(id, number) => {
                let client = self.clients.get(&id);
                let context = client.and_then(|client| client.owned.contexts.get(&number));
                let Some(context) = context else { return };
                if gone {
                    context.events.records.close();
                } else {
                    context.events.records.flush();
                }
            }
            Token::CmArrival(card) => self.take_datagrams(card),
            Token::CmChannel(key) => {
                if gone {
                    self.connections.hang_up(key);
                } else {
                    self.connections.go_on_telling(&CardsOfServer(&mut self.cards), key);
                }
            }
            Token::Answers => self.hear_answers(),
            Token::Images => self.hear_examiner(),
            Token::Metrics => self.give_metrics(),
            Token::WantedBack(card) => self.give_up(card),
            Token::GivenUp(card) => self.end_given_up(card),
            Token::Engine { card, window } => {
                let found = self.cards.iter_mut().find(|c| c.device.number == card);
                let Some(found) = found else { return };
                if let Ok(window) = found.window(window) {
                    window.engine.service();
                }
                if found.device.is_dead() {
                    self.connections.lose_card(card);
                }
                found.start_waiting_anew();
            }
        }
    }

    fn give_metrics(&mut self) {
        let Some((metrics, _)) = &self.metrics else { return };
        if metrics.is_asked() {
            metrics.give(page::page(&mut self.cards, &self.clients));
        }
    }

    fn accept(&mut self) {
        if self.aside.is_full() {
            log::error!("no connection is accepted for now: too many others hang in their closing");
            return self.reception.pause();
        }
        let Some(socket) = self.reception.accept() else { return };
        if let Err(error) = self.welcome(socket) {
            log::warn!("a connection was dropped: {error}");
        }
    }

    fn welcome(&mut self, socket: OwnedFd) -> Result<(), Error> {
        let (process, pidfd) = match peer::identify(socket.as_fd()) {
            Ok(found) => found,
            Err(error) => {
                self.aside.close(socket);
                return Err(error);
            }
        };
        self.end_oldest_greeting();
        let id = self.reception.number();
        let mut client = Client::new(id, process, socket, pidfd);
        let control = self.poller.watch(&client.socket, Token::Control(id), EpollFlags::EPOLLIN)?;
        match self.poller.watch(&client.handle, Token::Process(id), EpollFlags::EPOLLIN) {
            Ok(watch) => client.watches.extend([control, watch]),
            Err(error) => {
                self.poller.unwatch(&client.socket, control);
                self.aside.close(client.socket);
                return Err(error);
            }
        }
        log::debug!("{} connected", client.label());
        self.clients.insert(id, client);
        Ok(())
    }

    /// Refuses a process that has too many connections, or comes when all have.
    fn check_room(&self, process: &Process) -> Result<(), Error> {
        let served = || self.clients.values().filter(|it| it.stage != Stage::Greeting);
        if served().filter(|it| it.process.pid == process.pid).count() >= MAX_OF_PROCESS {
            return Err(Error::Crowded { who: "a process", connections: MAX_OF_PROCESS });
        }
        if served().count() >= MAX_CONNECTIONS {
            return Err(Error::Crowded { who: "all processes", connections: MAX_CONNECTIONS });
        }
        Ok(())
    }

    /// Makes room for a new connection among those that say nothing.
    fn end_oldest_greeting(&mut self) {
        let mut silent = self.clients.iter().filter(|(_, it)| it.stage == Stage::Greeting);
        let oldest = silent.next().map(|(id, _)| *id);
        if silent.count().saturating_add(1) >= MAX_GREETING {
            if let Some(id) = oldest {
                self.end(id, "it did not say who it is, and others wait to");
            }
        }
    }

    /// Takes one message of a client and answers it.
    fn control(&mut self, id: ClientId) {
        // An address that was given before the request is one that the answer knows.
        self.follow_addresses();
        match self.clients.get(&id).map(|client| client.put_off.is_some()) {
            Some(false) => {
                self.with_client(id, Self::exchange);
                self.heard = Instant::now();
            }
            // While its request is under way nothing but the end of its socket is heard.
            Some(true) => self.end(id, "it closed its socket"),
            None => {}
        }
    }

    /// Serves a client, which is out of the table meanwhile: the others are looked at for its sake. An
    /// error ends it.
    fn with_client(
        &mut self,
        id: ClientId,
        serve: impl FnOnce(&mut Self, &mut Client) -> Result<(), String>,
    ) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        let places = client.owned.places.len();
        let outcome = serve(self, &mut client);
        let left = client.owned.places.len() < places;
        let untidy = client.owned.rings.as_ref().is_some_and(RingMemory::is_untidy);
        self.clients.insert(id, client);
        if untidy && !self.untidy.contains(&id) {
            self.untidy.push_back(id);
        }
        if left {
            self.tend_cards();
        }
        // Events before the answer are delivered before the next request.
        events::dispatch(&mut self.cards, &self.clients);
        if let Err(why) = outcome {
            self.end(id, &why);
        }
    }

    /// One request and its reply; an error ends the client.
    fn exchange(&mut self, client: &mut Client) -> Result<(), String> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(MAX_MESSAGE, 0);
        let outcome = self.exchange_in(client, &mut buffer);
        self.buffer = buffer;
        outcome
    }

    fn exchange_in(&mut self, client: &mut Client, buffer: &mut [u8]) -> Result<(), String> {
        if !client.refuses_descriptors {
            match fdpass::brings_descriptors(client.socket.as_fd()) {
                Ok(false) => {}
                // Not received: to close them could wait.
                Ok(true) => return Err("it sent descriptors, which no request takes".into()),
                Err(error) if error.would_block() => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
        let received = match fdpass::receive(client.socket.as_fd(), buffer, Wait::Never) {
            Ok(received) if received.bytes == 0 => return Err("it closed its socket".into()),
            Ok(received) => received,
            Err(error) if error.would_block() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        if client.stage == Stage::Examined {
            return Err("it asks before its greeting is answered".into());
        }
        // Otherwise the answers of many requests, with their memory files, would pile up unread.
        if !fdpass::is_read(client.socket.as_fd()).map_err(|error| error.to_string())? {
            return Err("it asks again before it has read its answer".into());
        }
        let message = buffer.get(..received.bytes).unwrap_or_default();
        if client.stage == Stage::Greeting {
            return self.greet(client, message);
        }
        let request: Request = shim_abi::decode(message).map_err(|error| error.to_string())?;
        self.take_request(client, request)
    }

    /// Answers a request, or begins with it; `found` is the examiner's finding about its image.
    fn answer(
        &mut self,
        client: &mut Client,
        request: Request,
        found: Option<Examined>,
    ) -> Result<Progress, Error> {
        anew::check_named(&request)?;
        if request == Request::Status {
            return self.status(client);
        }
        if request == Request::Introduce {
            return self.introduce(client);
        }
        if let Request::Ping { card, address } = request {
            return self.ping(client, card, address);
        }
        if let Request::ResetCard { card } = request {
            return self.reset(client, card);
        }
        if flasher::is_flash(&request) {
            let Parts { mut around, flasher, .. } = self.parts();
            return flasher.request(&mut around, client, request, found);
        }
        let mut session = Session {
            cards: &mut self.cards,
            client,
            poller: &self.poller,
            pd_blocks: &mut self.pd_blocks,
            others: &self.clients,
            connections: &mut self.connections,
        };
        let changes_port = changes_port(&request);
        let answer = session.serve(request);
        if changes_port && answer.is_ok() {
            // The client finds the files changed behind the answer.
            self.write_changed_ports();
        }
        answer
    }

    /// The parts that act on the cards, and the state that they act on.
    fn parts(&mut self) -> Parts<'_> {
        let around = Surroundings {
            cards: &mut self.cards,
            clients: &mut self.clients,
            connections: &mut self.connections,
            news: &mut self.news,
            ends: Vec::new(),
            tend: false,
        };
        let (flasher, ports) = (&mut self.flasher, &mut self.ports);
        Parts { around, flasher, ports, poller: &self.poller }
    }

    /// Tells a tool this balboad's identity; it holds the lease before it asks.
    fn introduce(&mut self, client: &Client) -> Result<Progress, Error> {
        if client.stage != Stage::Tool {
            return Err(Error::Forbidden(
                "a verbs program knows its balboad; `balboa` asks".into(),
            ));
        }
        if let Some(lease) = &mut self.lease {
            lease.is_taken();
        }
        let (pid, options) = (std::process::id(), self.options.clone());
        let network_namespace = shim_abi::network_namespace();
        Ok(Response::Balboad { pid, network_namespace, options }.into())
    }

    /// Resets a card for a tool, and brings it up anew. Its programs are told before; they keep their
    /// objects of it only to destroy them.
    fn reset(&mut self, client: &mut Client, number: u32) -> Result<Progress, Error> {
        if client.stage != Stage::Tool {
            return Err(Error::Forbidden("a verbs program resets no card; `balboa` does".into()));
        }
        if client.resetting.take() != Some(number) {
            self.begin_reset(client.process.pid, number)?;
        }
        // It is brought up behind that.
        if self.connections.is_losing(number) {
            client.resetting = Some(number);
            return Ok(Progress::More);
        }
        self.tend_cards();
        // One that the kernel wants back is let go by that.
        let card = self.cards.iter().find(|card| card.device.number == number);
        card.map_or(Ok(()), Card::check_up)?;
        let programs = self.programs_with_remains(number);
        Ok(Response::Reset { programs: u32::try_from(programs).unwrap_or(u32::MAX) }.into())
    }

    fn begin_reset(&mut self, pid: i32, number: u32) -> Result<(), Error> {
        let card = find(&mut self.cards, number)?;
        if let Some(why) = &card.unusable {
            return Err(Error::Occupied(format!("{}: {why}", card.device.name())));
        }
        if let Some(vfpga) = card.reloading {
            let name = card.device.name();
            return Err(Error::Occupied(format!(
                "{name}: an image is being loaded into vFPGA {vfpga}"
            )));
        }
        log::warn!(client = pid; "{}: is reset, as process {pid} asks for", card.device.name());
        self.parts().around.take_from_programs(number, "it was reset by `balboa reset`")?;
        find(&mut self.cards, number)?.failure = None;
        Ok(())
    }

    fn greet(&mut self, client: &mut Client, message: &[u8]) -> Result<(), String> {
        let admitted = match shim_abi::decode_hello::<Hello>(message) {
            Ok(hello) => self.admit(client, &hello).map_err(|error| Refusal::from(&error)),
            Err(error) => Err(Refusal { errno: Errno::EPROTO as i32, reason: error.to_string() }),
        };
        if client.stage == Stage::Examined { Ok(()) } else { answer_hello(client, admitted) }
    }

    fn admit(&mut self, client: &mut Client, hello: &Hello) -> Result<(), Error> {
        peer::admit(&client.process, self.uid)?;
        self.check_room(&client.process)?;
        client.stage = match hello.role {
            Role::Tool => Stage::Tool,
            Role::Provider => {
                self.aside.ask(client.id, &client.process)?;
                Stage::Examined
            }
        };
        let build: String = hello.build.chars().filter(|c| !c.is_control()).take(64).collect();
        log::debug!("{}: {:?} of build {build}", client.label(), hello.role);
        Ok(())
    }

    /// Serves the programs about which the kernel has answered, or tells them why not.
    fn hear_answers(&mut self) {
        for (id, answer) in self.aside.answers() {
            let examined = self.clients.get_mut(&id).filter(|it| it.stage == Stage::Examined);
            let Some(client) = examined else { continue };
            if answer.is_ok() {
                client.stage = Stage::Provider;
            }
            if let Err(why) = answer_hello(client, answer.map_err(|error| Refusal::from(&error))) {
                self.end(id, &why);
            }
        }
    }

    /// Ends the clients whose memory did not answer a card.
    fn end_given_up(&mut self, number: u32) {
        let card = self.cards.iter().find(|card| card.device.number == number);
        if let Some(fd) = card.and_then(|card| card.device.backend.given_up()) {
            let _ = nix::unistd::read(fd, &mut [0; 8]);
        }
        let given_up = self.clients.iter().filter(|(_, client)| client.handle.is_given_up());
        let given_up: Vec<_> = given_up.map(|(id, _)| *id).collect();
        for id in given_up {
            self.end(id, "memory that it registered does not answer");
        }
    }

    /// The kernel wants a card back: its programs are told that it is gone, and once none has it open
    /// any more it is let go.
    fn give_up(&mut self, number: u32) {
        let Some(card) = self.cards.iter_mut().find(|card| card.device.number == number) else {
            return;
        };
        // It is signalled again and again.
        if let Some(fd) = card.device.backend.wanted_back() {
            let _ = nix::unistd::read(fd, &mut [0; 8]);
        }
        if !std::mem::replace(&mut card.wanted_back, true) {
            card.device.abandon("the kernel wants the card back");
            events::dispatch(&mut self.cards, &self.clients);
            self.connections.lose_card(number);
        }
        self.tend_cards();
    }
}

/// Parts of a server that act on the cards, apart from these.
struct Parts<'a> {
    around: Surroundings<'a>,
    flasher: &'a mut Flasher,
    ports: &'a mut HostPorts,
    poller: &'a Poller,
}

/// Why the server stops serving a client for now.
enum Heard {
    /// A signal has come.
    Signal,
    /// The lease has no holder.
    Lease,
}

/// Answers a greeting; an error ends the client.
fn answer_hello(client: &Client, admitted: Result<(), Refusal>) -> Result<(), String> {
    let reply: Reply = admitted.map(|()| Response::Done);
    reply_to(client, &shim_abi::hello_frame(&reply), &[])?;
    reply.map(drop).map_err(|refusal| refusal.reason)
}

/// Sends a reply; a client that does not read its replies is at an end.
fn reply_to(client: &Client, message: &[u8], fds: &[OwnedFd]) -> Result<(), String> {
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    fdpass::send(client.socket.as_fd(), message, &borrowed, Wait::Never)
        .map_err(|error| format!("it does not take its reply: {error}"))
}

#[cfg(test)]
mod tests;
