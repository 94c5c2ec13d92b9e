//! Services of the card's queue pairs: attached, detached, and following the queue pairs' lives.

use std::collections::VecDeque;
use std::rc::Rc;

use roce::{AddressVector, Instant, Priorities, QpState, Qpn, Services, Transmit};
use services::{Attached, Chain, Error, Selector, SharedTime, Subject, Turn, Turns};

use super::Network;
use crate::attached::Path;
use crate::port::Frame;

impl Network {
    /// Attaches services to queue pairs.
    pub(crate) fn attach(&mut self, selector: Selector, chain: Chain) -> Result<(), Error> {
        let there: Vec<(u32, bool)> = match selector {
            Selector::Qp(number) => {
                let state = self.state_of(number)?;
                vec![(number, !matches!(state, QpState::Reset | QpState::Init))]
            }
            Selector::Process(_) | Selector::Peer(_) | Selector::Dscp(_) => {
                let all = self.stack.queue_pairs().into_iter();
                let its = all.filter(|qpn| {
                    self.subject(*qpn).is_some_and(|subject| selector.selects(&subject))
                });
                its.map(|qpn| (qpn.value(), true)).collect()
            }
        };
        self.services.borrow_mut().attach(selector, chain, &there)?;
        self.put_in();
        Ok(())
    }

    /// Has other services follow those that are attached there.
    pub(crate) fn replace(&mut self, selector: Selector, chain: Chain) -> Result<(), Error> {
        self.services.borrow_mut().replace(selector, chain)
    }

    /// Attaches the services that the program of a new queue pair asks for.
    pub(crate) fn ask(&mut self, number: u32, chain: Chain) -> Result<(), Error> {
        self.state_of(number)?;
        self.services.borrow_mut().ask(number, chain)?;
        self.put_in();
        Ok(())
    }

    /// The state of a queue pair; refuses one that services cannot see.
    fn state_of(&self, number: u32) -> Result<QpState, Error> {
        let qpn = Qpn::new(number).ok_or(Error::NoQp(number))?;
        let state = self.stack.query_qp(qpn).ok_or(Error::NoQp(number))?.state;
        self.stack.has_open_messages(qpn).ok_or(Error::NotConnection(number))?;
        Ok(state)
    }

    /// Refuses a connection whose program asked for services, where the owner of the card has attached others for it.
    pub(crate) fn check_services(&self, qpn: Qpn, path: &AddressVector) -> Result<(), roce::Error> {
        if self.services.borrow().is_empty() {
            return Ok(());
        }
        let subject = self.subject_on(qpn, path);
        self.services.borrow().check(qpn.value(), &subject).map_err(|refused| {
            log::warn!("{refused}");
            roce::Error::Served(qpn)
        })
    }

    /// Detaches them; how many queue pairs keep them to the end of a message.
    pub(crate) fn detach(&mut self, selector: Selector, now: bool) -> Result<usize, Error> {
        let stack = &self.stack;
        let has_messages = |number| {
            let qpn = Qpn::new(number)?;
            let state = stack.query_qp(qpn)?.state;
            stack.has_open_messages(qpn).filter(|_| state != QpState::Err)
        };
        let left = self.services.borrow_mut().detach(selector, now, has_messages)?;
        self.withdraw();
        Ok(left)
    }

    /// The attached services.
    pub(crate) fn attached(&self) -> Vec<Attached> {
        self.services.borrow().list()
    }

    /// A reliable connection, by all that selectors know it by.
    fn subject(&self, qpn: Qpn) -> Option<Subject> {
        self.stack.has_open_messages(qpn)?;
        let snapshot = self.stack.query_qp(qpn)?;
        let is_connected = !matches!(snapshot.state, QpState::Reset | QpState::Init);
        Some(self.subject_on(qpn, &snapshot.path.filter(|_| is_connected)?))
    }

    /// The same of one that is to have a path.
    fn subject_on(&self, qpn: Qpn, path: &AddressVector) -> Subject {
        let process = self.owners.get(&qpn).copied();
        Subject { process, peer: path.dgid.to_bytes(), traffic_class: path.traffic_class }
    }

    /// Takes note of the process that has a queue pair.
    pub(crate) fn own(&mut self, qpn: Qpn, process: u32) {
        if self.stack.query_qp(qpn).is_some() {
            self.owners.insert(qpn, process);
        }
    }

    /// Detaches the services of a process that has ended; messages that have begun keep them.
    pub(crate) fn end_process(&mut self, process: u32) {
        let is_there = |it: &Attached| it.selector == Selector::Process(process) && !it.is_leaving;
        if self.attached().iter().any(is_there) {
            // They are there.
            let _ = self.detach(Selector::Process(process), true);
        }
    }

    /// Gives a queue pair that is connected the services that connections like this one have.
    pub(crate) fn begin_services(&mut self, qpn: Qpn) {
        if self.services.borrow().is_empty() {
            return;
        }
        if let Some(subject) = self.subject(qpn) {
            self.services.borrow_mut().connected(qpn.value(), &subject);
        }
    }

    /// A queue pair was reset.
    pub(crate) fn restart_services(&mut self, qpn: Qpn) {
        self.turns.borrow_mut().forget(qpn.value());
        self.change_services(|services| services.restarted(qpn.value()));
    }

    /// A queue pair was destroyed.
    pub(super) fn end_services(&mut self, qpn: Qpn) {
        self.owners.remove(&qpn);
        self.turns.borrow_mut().forget(qpn.value());
        self.change_services(|services| services.destroyed(qpn.value()));
    }

    /// Ends the services of all queue pairs.
    pub(super) fn end_all_services(&mut self) {
        self.owners.clear();
        self.change_services(services::Attachments::all_destroyed);
    }

    /// Detaches everything.
    pub(super) fn detach_all(&mut self) {
        self.change_services(|services| *services = services::Attachments::default());
    }

    /// Changes the attached services, if there are any.
    fn change_services(&mut self, change: impl FnOnce(&mut services::Attachments)) {
        if self.services.borrow().is_empty() {
            return;
        }
        change(&mut self.services.borrow_mut());
        self.withdraw();
    }

    /// Has the card's services share the time of its thread with those of other cards, before any is attached.
    pub(crate) fn share_time(&mut self, time: &Rc<SharedTime>) {
        self.time = Rc::clone(time);
        *self.turns.borrow_mut() = Turns::sharing(time);
    }

    /// Begins a round of the card while the thread has services; whether these are this card's, or frames wait for which
    /// some were.
    pub(crate) fn begin_turns(&mut self, now: u64) -> bool {
        let mut turns = self.turns.borrow_mut();
        turns.begin(now, self.clock);
        let is_served = self.stack.services().is_some() || !turns.is_empty();
        turns.serve(is_served);
        is_served
    }

    /// Lets frames of queue pairs with services wait for their turn, of those from that number on. Each of them does, so
    /// that services work where their time is measured.
    pub(crate) fn set_aside(&mut self, received: &mut VecDeque<Frame>, from: usize) {
        let Self { stack, services, turns, time, pool, .. } = self;
        let (mut services, mut turns) = (services.borrow_mut(), turns.borrow_mut());
        let mut number = 0usize;
        received.retain_mut(|frame| {
            number = number.saturating_add(1);
            if number <= from {
                return true;
            }
            let qpn = stack.destination(frame.as_slice()).map(Qpn::value);
            let served = qpn.and_then(|qpn| match services.connection(qpn) {
                Some(connection) => Some((qpn, connection.declared_work())),
                // Its services left it before its frames had their turn.
                None => turns.is_waiting(qpn).then_some((qpn, 0)),
            });
            let Some((qpn, declared)) = served else {
                time.note_other();
                return true;
            };
            if let Err(frame) = turns.wait(qpn, declared, std::mem::take(frame)) {
                pool.put(frame);
            }
            false
        });
    }

    /// Takes the next frame whose turn it is, and lets queue pairs stand in line to send whose turn it is before that.
    pub(crate) fn next_turn(&mut self) -> Option<Frame> {
        loop {
            let turn = self.turns.borrow_mut().take()?;
            match turn {
                Turn::Take(frame) => return Some(frame),
                Turn::Send(qpn) => {
                    if let Some(qpn) = Qpn::new(qpn) {
                        self.stack.stand_in_line(qpn);
                    }
                }
            }
        }
    }

    /// Polls a frame of a queue pair whose turn it is by the work of its services.
    pub(crate) fn poll_in_turn(&mut self, now: Instant, open: Priorities) -> Option<Transmit> {
        let Self { stack, services, turns, time, .. } = self;
        let mut may_send = |qpn: Qpn| match services.borrow_mut().connection(qpn.value()) {
            Some(its) if its.transforms() => {
                turns.borrow_mut().may_send(qpn.value(), its.declared_work())
            }
            Some(_) => true,
            None => {
                time.note_other();
                true
            }
        };
        stack.poll_transmit_if(now, open, &mut may_send)
    }

    /// Puts the attached services into the transport.
    fn put_in(&mut self) {
        let (attachments, turns) = (Rc::clone(&self.services), Rc::clone(&self.turns));
        self.serve(Box::new(Path { attachments, turns }));
    }

    /// Puts services into the transport.
    pub(crate) fn serve(&mut self, services: Box<dyn Services>) {
        self.turns.borrow_mut().serve(true);
        self.stack.set_services(Some(services));
    }

    /// Takes the services out of the transport where nothing is attached any more.
    fn withdraw(&mut self) {
        if self.services.borrow().is_empty() {
            self.stack.set_services(None);
        }
    }
}
