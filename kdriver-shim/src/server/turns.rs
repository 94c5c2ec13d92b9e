//! Work that would keep other clients waiting: balboad does it in turns, between which it serves them.
//!
//! A client ends in parts ([`crate::ending`]). A request that asks for much, or for objects that an ending
//! client may still have, is put off: balboad reads nothing more from its client before it is answered.

use shim_abi::{Refusal, Reply, Request};

use super::{Parts, Server, reply_to};
use crate::clients::{Client, PutOff, Stage};
use crate::events;
use crate::images;
use crate::images::examiner::Examined;
use crate::process::ClientId;
use crate::rings::RingMemory;
use crate::session::{Answer, Progress};
use crate::surroundings::Surroundings;

impl Server {
    /// Whether there is work that waits for its turn only.
    pub(super) fn has_work(&self) -> bool {
        let turns = [&self.ending, &self.put_off, &self.untidy];
        turns.iter().any(|turns| !turns.is_empty())
            || self.connections.is_ending()
            || self.connections.is_behind()
            || self.flasher.has_work()
            || self.surveys.is_asked()
            || events::has_suspects(&self.cards)
    }

    /// Does a bounded part of each kind of work.
    pub(super) fn work(&mut self) {
        if let Some(id) = self.ending.pop_front() {
            self.go_on_ending(id);
        }
        if let Some(id) = self.put_off.pop_front() {
            self.go_on_serving(id);
        }
        if let Some(id) = self.untidy.pop_front() {
            self.go_on_tidying(id);
        }
        if self.surveys.is_asked() {
            self.go_on_surveying();
        }
        self.tend_connections();
        self.have_next_examined();
        self.go_on_flashing();
        events::examine_suspects(&mut self.cards);
    }

    /// Goes on with the card that is flashed, and does the work that follows.
    pub(super) fn go_on_flashing(&mut self) {
        let Parts { mut around, flasher, .. } = self.parts();
        flasher.go_on(&mut around);
        let Surroundings { ends, tend, .. } = around;
        for id in ends {
            self.end(id, "an image is loaded into a card that it keeps open");
        }
        if tend {
            self.tend_cards();
        }
    }

    /// Answers the client whose image's finding is there, and starts the examination of the next one.
    pub(super) fn hear_examiner(&mut self) {
        let Some((client, found)) = self.flasher.examined() else { return };
        let is_image = matches!(found, Examined::Image(..));
        let asker = client.and_then(|client| self.clients.get_mut(&client));
        if let Some((client, put_off)) = asker.and_then(|it| Some((it.id, it.put_off.as_mut()?))) {
            put_off.found = Some(found);
            self.go_on_serving(client);
        } else {
            images::let_go(found);
        }
        self.flasher.go_on_examining(is_image);
        self.have_next_examined();
    }

    /// Serves the one that has waited longest for the examiner, if that is free.
    fn have_next_examined(&mut self) {
        if let Some(next) = self.flasher.next_to_examine() {
            self.go_on_serving(next);
        }
    }

    /// Ends a client: its requests are not read any more, and its objects go in turns.
    pub(super) fn end(&mut self, id: ClientId, why: &str) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let level = match client.stage {
            Stage::Ending => return,
            Stage::Provider => log::Level::Info,
            Stage::Tool | Stage::Greeting | Stage::Examined => log::Level::Debug,
        };
        log::log!(level, client = client.process.pid; "{} ends: {why}", client.label());
        let program = (client.stage == Stage::Provider).then_some(client.process.pid);
        client.begin_end(&self.poller);
        if let Some(pid) = program {
            self.end_services_of(pid);
        }
        self.connections.end_client(id);
        self.flasher.forget_upload(id);
        self.go_on_ending(id);
    }

    /// Has cards detach the services of a process that has no client any more: its number may become another's.
    fn end_services_of(&self, pid: i32) {
        let is_its = |client: &Client| client.stage == Stage::Provider && client.process.pid == pid;
        if let (false, Ok(pid)) = (self.clients.values().any(is_its), u32::try_from(pid)) {
            let cards = self.cards.iter().filter(|card| card.is_there());
            cards.for_each(|card| card.device.backend.end_process(pid));
        }
    }

    /// Does a part of a client's end, and the work that follows from it when that was the last.
    pub(super) fn go_on_ending(&mut self, id: ClientId) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        if !client.end_some(&mut self.cards) {
            self.clients.insert(id, client);
            self.ending.push_back(id);
            return;
        }
        self.aside.close(client.socket);
        self.tend_cards();
        self.reception.resume();
        for (other, client) in &mut self.clients {
            let Some(put_off) = &mut client.put_off else { continue };
            let waited = put_off.awaits.len();
            put_off.awaits.retain(|awaited| *awaited != id);
            if put_off.awaits.len() < waited && !self.put_off.contains(other) {
                self.put_off.push_back(*other);
            }
        }
        self.freed.add(client.usage.most_kept());
    }

    /// Goes on with a client's request, and hears it again when that is answered.
    pub(super) fn go_on_serving(&mut self, id: ClientId) {
        self.with_client(id, |server, client| {
            let Some(again) = client.put_off.take() else { return Ok(()) };
            let PutOff { request, awaits, found } = again;
            server.serve_request(client, request, found, Some(awaits))?;
            if client.put_off.is_none() {
                client.heed(&server.poller, true);
            }
            Ok(())
        });
    }

    /// Frees a piece of a client's ring memory.
    fn go_on_tidying(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(rings) = &mut client.owned.rings else { return };
        rings.tidy();
        if rings.is_untidy() {
            self.untidy.push_back(id);
        } else if client.put_off.is_some() && !self.put_off.contains(&id) {
            self.put_off.push_back(id);
        }
    }

    /// Takes a request that has just come, and hears no other before it is answered.
    pub(super) fn take_request(
        &mut self,
        client: &mut Client,
        request: Request,
    ) -> Result<(), String> {
        self.serve_request(client, request, None, None)?;
        if client.put_off.is_some() {
            client.heed(&self.poller, false);
        }
        Ok(())
    }

    /// Serves a request and answers it, unless it is put off; an error ends the client. `awaits` are
    /// the clients whose end it waits for, if it was put off before, and
    /// `found` is the examined image that it has waited for.
    fn serve_request(
        &mut self,
        client: &mut Client,
        request: Request,
        found: Option<Examined>,
        awaits: Option<Vec<ClientId>>,
    ) -> Result<(), String> {
        let outcome = self.answer(client, request.clone(), found);
        let answer = match outcome {
            Ok(Progress::Done(answer)) => Ok(answer),
            Ok(Progress::More) => {
                client.put_off = Some(PutOff::new(request, awaits.unwrap_or_default()));
                self.put_off.push_back(client.id);
                return Ok(());
            }
            Ok(Progress::Waits) => {
                client.put_off = Some(PutOff::new(request, Vec::new()));
                return Ok(());
            }
            Err(error) => {
                let awaits = awaits.unwrap_or_else(|| self.ending.iter().copied().collect());
                let untidy = client.owned.rings.as_ref().is_some_and(RingMemory::is_untidy);
                let tidied = untidy && error.is_shortage_of_rings();
                if tidied || (error.is_shortage() && !awaits.is_empty()) {
                    // The end of those clients, or of the tidying, has it served again.
                    client.put_off = Some(PutOff::new(request, awaits));
                    return Ok(());
                }
                Err(error)
            }
        };
        let (reply, fds): (Reply, _) = match answer {
            Ok(Answer { response, fds }) => (Ok(response), fds),
            Err(error) => {
                client.log_refusal(&error);
                (Err(Refusal::from(&error)), Vec::new())
            }
        };
        reply_to(client, &shim_abi::encode::<Reply>(&reply), &fds)
    }
}
