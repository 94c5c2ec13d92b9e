//! Services of the card's queue pairs: attached, detached, and following the queue pairs' lives.

use std::rc::Rc;

use roce::{QpState, Qpn};
use services::{Attached, Chain, Error, Selector};

use super::Network;
use crate::attached::Path;

impl Network {
    /// Attaches services to queue pairs.
    pub(crate) fn attach(&mut self, selector: Selector, chain: Chain) -> Result<(), Error> {
        let there: Vec<(u32, bool)> = match selector {
            Selector::Qp(number) => {
                let qpn = Qpn::new(number).ok_or(Error::NoQp(number))?;
                let state = self.stack.query_qp(qpn).ok_or(Error::NoQp(number))?.state;
                self.stack.has_open_messages(qpn).ok_or(Error::NotConnection(number))?;
                vec![(number, !matches!(state, QpState::Reset | QpState::Init))]
            }
            Selector::Peer(peer) => {
                let all = self.stack.queue_pairs().into_iter();
                let its = all.filter(|qpn| self.peer_of(*qpn) == Some(peer));
                its.map(|qpn| (qpn.value(), true)).collect()
            }
        };
        self.services.borrow_mut().attach(selector, chain, &there)?;
        self.stack.set_services(Some(Box::new(Path(Rc::clone(&self.services)))));
        Ok(())
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

    /// The peer of a reliable connection.
    fn peer_of(&self, qpn: Qpn) -> Option<[u8; 16]> {
        self.stack.has_open_messages(qpn)?;
        let snapshot = self.stack.query_qp(qpn)?;
        let is_connected = !matches!(snapshot.state, QpState::Reset | QpState::Init);
        Some(snapshot.path.filter(|_| is_connected)?.dgid.to_bytes())
    }

    /// Gives a queue pair that has got a peer the services of that peer.
    pub(crate) fn begin_services(&mut self, qpn: Qpn) {
        if self.services.borrow().is_empty() {
            return;
        }
        if let Some(peer) = self.peer_of(qpn) {
            self.services.borrow_mut().connected(qpn.value(), peer);
        }
    }

    /// A queue pair was reset.
    pub(crate) fn restart_services(&mut self, qpn: Qpn) {
        self.change_services(|services| services.restarted(qpn.value()));
    }

    /// A queue pair was destroyed.
    pub(super) fn end_services(&mut self, qpn: Qpn) {
        self.change_services(|services| services.destroyed(qpn.value()));
    }

    /// Ends the services of all queue pairs.
    pub(super) fn end_all_services(&mut self) {
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

    /// Takes the services out of the transport where nothing is attached any more.
    fn withdraw(&mut self) {
        if self.services.borrow().is_empty() {
            self.stack.set_services(None);
        }
    }
}
