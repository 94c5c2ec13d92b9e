//! The calls of owners.

use super::{Manager, Prepared};
use crate::connection::{Connection, ExchangeKind, words};
use crate::event::{Accept, Answer, Connect, EventKind, Resolve};
use crate::machine::{self, Input, State};
use crate::types::{Error, Id, Instant, Owner, Path, PortAttributes};
use crate::wire::{Body, RejectReason, SidrRep, SidrStatus};

impl Manager {
    /// Asks for a connection. The answer is one of the events [`EventKind::ConnectResponse`],
    /// [`EventKind::Rejected`] and [`EventKind::Unreachable`].
    ///
    /// # Errors
    /// Where a value is out of its range, or the owner has too many.
    pub fn connect(
        &mut self,
        now: Instant,
        owner: Owner,
        asked: &Connect<'_>,
    ) -> Result<Id, Error> {
        let (mut connection, port) = self.asking(owner, ExchangeKind::Connection, asked.path)?;
        let req = connection.request(asked, port)?;
        Ok(self.ask(now, owner, connection, State::ReqSent, req.into()))
    }

    /// Asks where the datagrams of a service go. The answer is [`EventKind::Resolved`] or
    /// [`EventKind::Unreachable`].
    ///
    /// # Errors
    /// Where a value is out of its range, or the owner has too many.
    pub fn resolve(
        &mut self,
        now: Instant,
        owner: Owner,
        asked: &Resolve<'_>,
    ) -> Result<Id, Error> {
        let (mut connection, _) = self.asking(owner, ExchangeKind::Resolution, asked.path)?;
        let req = connection.resolve(asked)?;
        Ok(self.ask(now, owner, connection, State::SidrReqSent, req.into()))
    }

    /// Asks an address once for its presence. The answer is [`EventKind::Resolved`], of which
    /// [`crate::presence::Presence::parse`] takes the private data where its status is valid, or
    /// [`EventKind::Unreachable`].
    ///
    /// # Errors
    /// Where a value is out of its range, or the owner has too many.
    // CM-52
    pub fn ask_presence(
        &mut self,
        now: Instant,
        owner: Owner,
        path: Path,
        response_timeout: u8,
    ) -> Result<Id, Error> {
        let (mut connection, _) = self.asking(owner, ExchangeKind::Resolution, path)?;
        let req = connection.who_is_there(response_timeout)?;
        Ok(self.ask(now, owner, connection, State::SidrReqSent, req.into()))
    }

    /// The state of a new request, under random numbers.
    fn asking(
        &mut self,
        owner: Owner,
        kind: ExchangeKind,
        path: Path,
    ) -> Result<(Connection, PortAttributes), Error> {
        self.may_own(owner)?;
        let number = path.route.port;
        let port = *self.ports.get(&number).ok_or(Error::NoPort(number))?;
        let mut connection = Connection::asking(kind, owner, path, port);
        connection.local_id = self.draw_id()?;
        connection.local_psn = self.draw_psn();
        Ok((connection, port))
    }

    /// Sends a request, and waits for the answer.
    fn ask(
        &mut self,
        now: Instant,
        owner: Owner,
        mut connection: Connection,
        state: State,
        body: Body,
    ) -> Id {
        connection.state = state;
        let id = self.keep(owner, connection);
        self.new_transaction(id);
        let mut prepared = Prepared { send: Some(body), ..Prepared::default() };
        for act in [machine::Act::Send, machine::Act::Wait] {
            self.act(now, id, act, &mut prepared);
        }
        Id(id)
    }

    /// Accepts a connection that a listener was asked for.
    ///
    /// # Errors
    /// Where it is not to be decided, or a value is out of its range.
    pub fn accept(&mut self, now: Instant, id: Id, accept: &Accept<'_>) -> Result<(), Error> {
        self.check(id, Input::Accept)?;
        let Some(connection) = self.ids.get_mut(&id.0) else { return Err(Error::NoId(id)) };
        let number = connection.path.route.port;
        let port = *self.ports.get(&number).ok_or(Error::NoPort(number))?;
        let rep = connection.accept(accept, port)?;
        self.call(now, id, Input::Accept, rep.into())
    }

    /// Says that this side of an accepted connection can receive.
    ///
    /// # Errors
    /// Where the peer has not accepted, or there is too much private data.
    pub fn ready(&mut self, now: Instant, id: Id, private_data: &[u8]) -> Result<(), Error> {
        let rtu = self.check(id, Input::Ready)?.rtu(private_data)?;
        self.call(now, id, Input::Ready, rtu.into())
    }

    /// Refuses a connection that a listener was asked for, or that the peer has accepted.
    ///
    /// # Errors
    /// Where it cannot be refused (any more), or there is too much private data.
    pub fn reject(
        &mut self,
        now: Instant,
        id: Id,
        reason: RejectReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        let rej = self.check(id, Input::Reject)?.rej(reason, info, private_data)?;
        self.call(now, id, Input::Reject, rej.into())
    }

    /// Asks for a connection's end, or agrees to it.
    ///
    /// # Errors
    /// Where there is no connection, or too much private data.
    pub fn disconnect(&mut self, now: Instant, id: Id, private_data: &[u8]) -> Result<(), Error> {
        let connection = self.check(id, Input::Disconnect)?;
        let body = if connection.state == State::DreqReceived {
            connection.drep(private_data)?.into()
        } else {
            connection.dreq(private_data)?.into()
        };
        self.call(now, id, Input::Disconnect, body)
    }

    /// Says that the queue pair of an accepted connection has received something: the peer's RTU
    /// was lost, or is late.
    ///
    /// # Errors
    /// Where no RTU is waited for.
    // CM-33
    pub fn communication_established(&mut self, now: Instant, id: Id) -> Result<(), Error> {
        self.check(id, Input::CommunicationEstablished)?;
        let tell = Some(EventKind::Established { private_data: Box::default() });
        let prepared = Prepared { tell, ..Prepared::default() };
        self.run(now, id.0, Input::CommunicationEstablished, prepared);
        Ok(())
    }

    /// Answers where a listener's datagrams go, or refuses to.
    ///
    /// # Errors
    /// Where it was not asked, or there is too much private data.
    pub fn answer(&mut self, now: Instant, id: Id, answer: &Answer<'_>) -> Result<(), Error> {
        let connection = self.check(id, Input::Answer)?;
        let valid = answer.status == SidrStatus::VALID;
        if valid && (answer.qpn > 0xff_fffe || answer.qpn < 2) {
            return Err(Error::Range("QPN"));
        }
        let rep = SidrRep {
            status: answer.status,
            qpn: if valid { answer.qpn } else { 0 },
            qkey: if valid { answer.qkey } else { 0 },
            private_data: words(answer.private_data)?,
            ..connection.no_resolution()
        };
        self.call(now, id, Input::Answer, rep.into())
    }

    /// Destroys an identifier: the owner gets no more events of it. A connection that has not ended is refused or
    /// ended, and goes on without an owner until the peer has answered or its time is over.
    ///
    /// # Errors
    /// Where there is no such identifier.
    pub fn destroy(&mut self, now: Instant, id: Id) -> Result<(), Error> {
        // CM-41
        let connection = self.check(id, Input::Destroy)?;
        let (owner, send) = (connection.owner, connection.farewell());
        self.run(now, id.0, Input::Destroy, Prepared { send, ..Prepared::default() });
        if self.ids.get(&id.0).is_none_or(|connection| connection.state == State::Ended) {
            self.remove(id.0);
            return Ok(());
        }
        self.last_lingering = self.last_lingering.saturating_add(1);
        if let Some(connection) = self.ids.get_mut(&id.0) {
            connection.owner = None;
            connection.lingers = Some(self.last_lingering);
            self.lingering.insert(self.last_lingering, id.0);
        }
        if let Some(owner) = owner {
            self.disown(owner);
        }
        // CM-49
        while self.lingering.len() > self.limits.lingering {
            let Some((_, oldest)) = self.lingering.pop_first() else { break };
            self.counters.cut_short = self.counters.cut_short.wrapping_add(1);
            self.remove(oldest);
        }
        Ok(())
    }

    /// The connection, if its state allows the call.
    fn check(&self, id: Id, input: Input) -> Result<&Connection, Error> {
        let connection = self.owned_connection(id)?;
        let state = connection.state;
        machine::step(state, input).ok_or(Error::State { id, state })?;
        Ok(connection)
    }

    /// Does the step of a call that was checked.
    fn call(&mut self, now: Instant, id: Id, input: Input, body: Body) -> Result<(), Error> {
        self.run(now, id.0, input, Prepared { send: Some(body), ..Prepared::default() });
        Ok(())
    }
}
