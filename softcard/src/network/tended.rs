//! Services of the card's queue pairs: attached, detached, and following the queue pairs' lives.

use std::rc::Rc;

use roce::{AddressVector, QpState, Qpn};
use services::{Attached, Chain, Error, Selector, Subject};

use super::Network;
use crate::attached::Path;

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
        self.change_services(|services| services.restarted(qpn.value()));
    }

    /// A queue pair was destroyed.
    pub(super) fn end_services(&mut self, qpn: Qpn) {
        self.owners.remove(&qpn);
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

    /// Puts the services into the transport.
    fn put_in(&mut self) {
        self.stack.set_services(Some(Box::new(Path(Rc::clone(&self.services)))));
    }

    /// Takes the services out of the transport where nothing is attached any more.
    fn withdraw(&mut self) {
        if self.services.borrow().is_empty() {
            self.stack.set_services(None);
        }
    }
}
