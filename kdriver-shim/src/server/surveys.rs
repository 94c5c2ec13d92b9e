//! Surveys for the status: one at a time answers all clients that asked before it began.
//!
//! It goes on in turns: a client waits for at most two surveys, however many clients ask.

use std::os::fd::OwnedFd;

use shim_abi::{Refusal, Reply, Request, Response};

use super::{Server, reply_to};
use crate::clients::Client;
use crate::error::Error;
use crate::process::ClientId;
use crate::session::Progress;
use crate::status::{self, Survey};

/// Connections of one process that may wait for the status at a time.
pub(super) const MAX_ASKING: usize = 16;
/// Connections that are answered in a turn.
const ANSWERED: usize = 64;

/// The survey that runs, and the clients that wait for the next.
#[derive(Default)]
pub(super) struct Surveys {
    /// Clients that have asked since the survey began.
    asking: Vec<ClientId>,
    current: Option<Current>,
}

/// A survey, and the clients that asked before it began.
struct Current {
    survey: Survey,
    askers: Vec<ClientId>,
    /// Its result: the length of the text, which is in a memory file.
    told: Option<Result<(u64, OwnedFd), Refusal>>,
}

impl Surveys {
    /// Whether a client waits for an answer.
    pub(super) fn is_asked(&self) -> bool {
        self.current.is_some() || !self.asking.is_empty()
    }

    fn askers(&self) -> impl Iterator<Item = &ClientId> {
        self.asking.iter().chain(self.current.iter().flat_map(|current| &current.askers))
    }
}

impl Server {
    /// A client asks for the status: it is answered behind the next survey.
    pub(super) fn status(&mut self, client: &Client) -> Result<Progress, Error> {
        let asked = |id: &&ClientId| {
            self.clients.get(id).is_some_and(|other| other.process.pid == client.process.pid)
        };
        if self.surveys.askers().filter(asked).count() >= MAX_ASKING {
            return Err(Error::Asking { connections: MAX_ASKING });
        }
        if !self.surveys.askers().any(|id| *id == client.id) {
            self.surveys.asking.push(client.id);
        }
        Ok(Progress::Waits)
    }

    /// Goes on with the survey that is under way, or begins the next; or answers some of its clients.
    pub(super) fn go_on_surveying(&mut self) {
        let clients = &self.clients;
        let surveys = &mut self.surveys;
        let mut current = surveys.current.take().unwrap_or_else(|| {
            let askers = std::mem::take(&mut surveys.asking);
            Current { survey: Survey::new(clients, &askers), askers, told: None }
        });
        if !current.askers.iter().any(|id| clients.contains_key(id)) {
            return;
        }
        if current.told.is_none() && current.survey.go_on(&mut self.cards, clients) {
            let told = self.tell_status(&current.survey);
            current.told = Some(told.map_err(|error| Refusal::from(&error)));
        }
        if let Some(told) = &current.told {
            let left = current.askers.len().saturating_sub(ANSWERED);
            for id in current.askers.split_off(left) {
                self.answer_status(id, told);
            }
        }
        if !current.askers.is_empty() {
            self.surveys.current = Some(current);
        }
    }

    fn tell_status(&mut self, survey: &Survey) -> Result<(u64, OwnedFd), Error> {
        let text = status::text(
            &self.state_dir,
            self.uid,
            &mut self.cards,
            &self.clients,
            survey,
            self.ports.shadow(),
            &self.connections,
        );
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        Ok((length, status::to_memfd(&text)?))
    }

    fn answer_status(&mut self, id: ClientId, told: &Result<(u64, OwnedFd), Refusal>) {
        self.with_client(id, |server, client| {
            if client.put_off.take_if(|it| it.request == Request::Status).is_none() {
                return Ok(());
            }
            let (reply, fds): (Reply, _) = match told {
                Ok((length, fd)) => {
                    (Ok(Response::Status { length: *length }), std::slice::from_ref(fd))
                }
                Err(refusal) => (Err(refusal.clone()), [].as_slice()),
            };
            reply_to(client, &shim_abi::encode::<Reply>(&reply), fds)?;
            client.heed(&server.poller, true);
            Ok(())
        });
    }
}
