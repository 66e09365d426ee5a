use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use multiway_api::status::Treatment;
use multiway_core::flow::features::Action;
use multiway_core::flow::names::HostName;
use multiway_core::mphttp::http::{
    HeadError, HeadLimits, Method, RequestHead, RequestTarget, request_may_split,
};
use tokio::net::TcpStream;

use super::Route;
use super::exchange::{self, Continuation, name_in};
use super::http_dns::Collected;
use super::split;
use crate::context::Context;
use crate::flows::FlowHandle;
use crate::proxy::bonded::{self, Bonded};
use crate::proxy::relay::{relay, reset, shut_down, write_all};
use crate::proxy::tunnel::{Destination, Dial, Upstream, dial, leads_home};

/// How long a client may take from the end of an answer to that of its next request's head.
const REQUEST_WAIT: Duration = Duration::from_secs(120);

/// Bytes read at once while a head is awaited.
pub(super) const HEAD_READ_BYTES: usize = 16 * 1024;

/// How long a client is heard after its last answer: a connection that is closed with bytes unread
/// is reset, and the reset may overtake the answer (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_secs(2);

/// How the client sees us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// As a proxy: it names the server in each request.
    Proxy,
    /// Not at all: it believes that it speaks to this destination.
    Transparent(Destination),
}

/// One client's connection.
pub(super) struct Session {
    pub(super) context: Context,
    pub(super) client: TcpStream,
    /// Read from the client and not yet used.
    pub(super) incoming: BytesMut,
    role: Role,
    accepted_on: SocketAddr,
    pub(super) flow: FlowHandle,
    /// Connections kept for the next request, all to `kept_for`.
    pub(super) kept: Vec<Upstream>,
    pub(super) kept_for: Option<Destination>,
    /// The name in the request they were made for: some lead to other addresses of it.
    kept_name: Option<HostName>,
    /// The answer in progress, when names are to be learnt from it.
    pub(super) collected: Option<Collected>,
}

/// What becomes of a client's connection after a request.
#[expect(clippy::large_enum_variant, reason = "one lives at a time, on the stack of its task")]
enum Served {
    /// Another request may come.
    Next(Session),
    /// It ends in good order.
    Last(TcpStream),
    /// Somebody else ended it.
    Gone,
}

/// What the next bytes of the client are.
#[expect(clippy::large_enum_variant, reason = "one lives at a time, on the stack of its task")]
enum Incoming {
    Request(RequestHead),
    End,
    Malformed(HeadError),
}

impl Session {
    pub(super) fn new(
        context: Context,
        client: TcpStream,
        first_bytes: Vec<u8>,
        role: Role,
        accepted_on: SocketAddr,
        flow: FlowHandle,
        upstream: Option<Upstream>,
    ) -> Self {
        let kept_for = match &role {
            Role::Transparent(destination) => Some(destination.clone()),
            Role::Proxy => None,
        };
        // However we end in the middle of an answer, even killed: the client must not take a part for
        // the whole. What ends in good order says so.
        reset(&client);
        let incoming = BytesMut::from(&first_bytes[..]);
        let kept = upstream.into_iter().collect();
        Self {
            context,
            client,
            incoming,
            role,
            accepted_on,
            flow,
            kept,
            kept_for,
            kept_name: None,
            collected: None,
        }
    }

    /// Serves requests until the connection ends.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        loop {
            match self.next_request().await? {
                Incoming::End => return shut_down(&self.client),
                Incoming::Request(request) => match self.serve_request(request).await? {
                    Served::Next(next) => self = next,
                    Served::Last(client) => return end_well(&client).await,
                    Served::Gone => return Ok(()),
                },
                Incoming::Malformed(error) => return self.refuse_malformed(error).await,
            }
        }
    }

    async fn next_request(&mut self) -> io::Result<Incoming> {
        // For the whole head: a client that sends a byte now and then must not stay for ever.
        let deadline = tokio::time::Instant::now() + REQUEST_WAIT;
        loop {
            // Empty lines before a request are ignored (RFC 9112 section 2.2).
            while self.incoming.starts_with(b"\r\n") {
                drop(self.incoming.split_to(2));
            }
            if !self.incoming.is_empty() {
                match RequestHead::parse(&self.incoming, HeadLimits::default()) {
                    Ok(Some((head, length))) => {
                        drop(self.incoming.split_to(length));
                        return Ok(Incoming::Request(head));
                    }
                    Ok(None) => {}
                    Err(error) => return Ok(Incoming::Malformed(error)),
                }
            }
            let reading = read_some(&self.client, &mut self.incoming, HEAD_READ_BYTES);
            let Ok(read) = tokio::time::timeout_at(deadline, reading).await else {
                return Ok(Incoming::End);
            };
            if read? == 0 {
                return Ok(Incoming::End);
            }
        }
    }

    async fn serve_request(mut self, request: RequestHead) -> io::Result<Served> {
        let (destination, opening_bytes) = match self.address(&request) {
            Ok(addressed) => addressed,
            Err(problem) => {
                self.answer("400 Bad Request", problem).await?;
                return Ok(Served::Last(self.client));
            }
        };
        self.flow.set_destination(destination.to_string());
        if self.role == Role::Proxy && *request.method() == Method::Connect {
            return self.connect(destination).await;
        }
        let name = name_in(&request);
        let is_other_name = self.kept_name.is_some() && self.kept_name != name;
        if self.kept_for.as_ref() != Some(&destination) || is_other_name {
            self.kept.clear();
            self.kept_for = Some(destination.clone());
        }
        self.kept_name = name;
        let route = Route { destination, accepted_on: self.accepted_on };
        let host = request.host().map_or_else(|| route.destination.host(), str::to_owned);
        let decision = self.context.features.current().decide(&request, &host);
        let plan = match (&decision.action, request_may_split(&request)) {
            // Ranges would be asked for in origin form, which is not for a proxy.
            _ if self.is_for_another_proxy(&request) => {
                Err("the program speaks to a proxy of its own".to_owned())
            }
            (Action::Split { minimum_size, open_all_paths_at_once }, Ok(asked)) => Ok(split::Plan {
                minimum_size: *minimum_size,
                // Not when the client itself asked for a part, or on a condition.
                open_all_paths_at_once: *open_all_paths_at_once
                    && asked.range.is_none()
                    && !is_conditional(&request),
            }),
            (Action::Split { .. }, Err(why)) => Err(why.to_string()),
            _ => Err("a rule says so".to_owned()),
        };
        if let Action::DnsAnswer(_) = decision.action {
            self.collected = Some(Collected::default());
        }
        let continuation = match plan {
            Ok(plan) if !leads_home(&self.context, &route.destination) => {
                split::exchange(&mut self, &route, &request, opening_bytes, plan).await?
            }
            Ok(_) => {
                self.flow.set_treatment(Treatment::Steer, "the server is on this device");
                exchange::exchange(&mut self, &route, &request, opening_bytes).await?
            }
            Err(why) => {
                self.flow.set_treatment(Treatment::Steer, why);
                exchange::exchange(&mut self, &route, &request, opening_bytes).await?
            }
        };
        if let (Action::DnsAnswer(format), Some(collected)) = (&decision.action, self.collected.take()) {
            collected.learn(&self.context.resolver, format, &request);
        }
        match continuation {
            Continuation::NextRequest => Ok(Served::Next(self)),
            Continuation::Over => Ok(Served::Last(self.client)),
            Continuation::Aborted => Ok(Served::Gone),
            Continuation::Tunnel { upstream, read_ahead } => {
                write_all(&self.client, &read_ahead).await?;
                let first = self.incoming.to_vec();
                relay(self.client, first, upstream, &self.flow).await?;
                Ok(Served::Gone)
            }
        }
    }

    /// Whether an intercepted client believes that it speaks to a proxy.
    fn is_for_another_proxy(&self, request: &RequestHead) -> bool {
        matches!(self.role, Role::Transparent(_))
            && matches!(request.target(), RequestTarget::Absolute { .. })
    }

    /// Where a request goes, and its bytes as the server is to get them.
    fn address(&self, request: &RequestHead) -> Result<(Destination, Bytes), &'static str> {
        match (&self.role, request.target()) {
            (Role::Transparent(destination), _) => Ok((destination.clone(), request.raw().clone())),
            (Role::Proxy, RequestTarget::Origin { .. } | RequestTarget::Asterisk) => {
                Err("this is a proxy: requests must name the server, as in GET http://example.org/")
            }
            (Role::Proxy, _) if request.scheme() == "https" => Err("https is tunnelled: use CONNECT"),
            (Role::Proxy, _) => {
                let host = request.host().ok_or("the request names no server")?;
                let destination =
                    Destination::parse(host, request.port()).ok_or("the server's name is malformed")?;
                Ok((destination, request.to_origin_form().into()))
            }
        }
    }

    async fn connect(self, destination: Destination) -> io::Result<Served> {
        match bonded::open(&self.context, &destination, &self.incoming, &self.flow).await {
            Bonded::Stream(stream) => {
                write_all(&self.client, b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
                bonded::carry(self.client, stream, &self.flow).await?;
                return Ok(Served::Gone);
            }
            Bonded::Failed(reason) => {
                self.answer("502 Bad Gateway", reason).await?;
                return Ok(Served::Last(self.client));
            }
            Bonded::Steer => {}
        }
        self.flow.set_treatment(Treatment::Steer, "CONNECT: encrypted end to end");
        let wanted = Dial { destination: &destination, server_name: None, accepted_on: self.accepted_on };
        match dial(&self.context, wanted).await {
            Ok(upstream) => {
                write_all(&self.client, b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
                let first = self.incoming.to_vec();
                relay(self.client, first, upstream, &self.flow).await?;
                Ok(Served::Gone)
            }
            Err(error) => {
                self.answer("502 Bad Gateway", &error.to_string()).await?;
                Ok(Served::Last(self.client))
            }
        }
    }

    /// Tells the client that there is no answer: as a proxy in words, else by a reset, which is what
    /// it would have heard.
    pub(super) async fn answer_failure(&self, reason: &str) -> io::Result<Continuation> {
        self.flow.set_treatment(Treatment::Steer, reason);
        match self.role {
            Role::Proxy => {
                self.answer("502 Bad Gateway", reason).await?;
                Ok(Continuation::Over)
            }
            Role::Transparent(_) => Ok(self.abort()),
        }
    }

    /// Whether the client does not know of us, and so is to get whatever its server sends.
    pub(super) fn is_transparent(&self) -> bool {
        self.role != Role::Proxy
    }

    /// The addresses to which the client may believe to be connected.
    pub(super) fn destinations(&self) -> Vec<SocketAddr> {
        match self.role {
            Role::Transparent(Destination::Address(address)) => vec![self.accepted_on, address],
            Role::Transparent(Destination::Name(..)) | Role::Proxy => vec![self.accepted_on],
        }
    }

    /// Ends the client's connection so that it cannot take a part for the whole.
    pub(super) fn abort(&self) -> Continuation {
        reset(&self.client);
        Continuation::Aborted
    }

    /// A connection that was kept and is still open, on the most preferred of their paths.
    pub(super) fn take_kept(&mut self) -> Option<Upstream> {
        self.kept.retain(is_quiet);
        let order = self.context.paths.usable_for(&self.kept_for.as_ref()?.host());
        let rank = |kept: &Upstream| order.iter().position(|info| Some(info.id) == kept.path());
        let best = (0..self.kept.len()).min_by_key(|&index| rank(&self.kept[index]).unwrap_or(usize::MAX))?;
        Some(self.kept.swap_remove(best))
    }

    pub(super) async fn answer(&self, status: &str, text: &str) -> io::Result<()> {
        let body = format!("multiway: {text}\n");
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        write_all(&self.client, head.as_bytes()).await?;
        write_all(&self.client, body.as_bytes()).await
    }

    /// A head that two readers might understand differently is not forwarded by a proxy; an
    /// intercepted client gets its bytes through as they are, for it chose this very server.
    async fn refuse_malformed(mut self, error: HeadError) -> io::Result<()> {
        let destination = match &self.role {
            Role::Proxy => {
                self.answer("400 Bad Request", &error.to_string()).await?;
                return end_well(&self.client).await;
            }
            Role::Transparent(destination) => destination.clone(),
        };
        self.flow.set_treatment(Treatment::Steer, format!("not understood as HTTP: {error}"));
        let wanted = Dial { destination: &destination, server_name: None, accepted_on: self.accepted_on };
        let upstream = match self.take_kept() {
            Some(upstream) => upstream,
            None => match dial(&self.context, wanted).await {
                Ok(upstream) => upstream,
                Err(error) => {
                    reset(&self.client);
                    return Err(io::Error::other(error));
                }
            },
        };
        let first = self.incoming.to_vec();
        relay(self.client, first, upstream, &self.flow).await
    }
}

/// Whether an idle connection is open and nothing came on it, which could belong to no request.
pub(super) fn is_quiet(kept: &Upstream) -> bool {
    matches!(kept.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// Closes a client's connection so that all that was sent to it arrives.
async fn end_well(client: &TcpStream) -> io::Result<()> {
    shut_down(client)?;
    let drained = async {
        let mut unread = BytesMut::new();
        while read_some(client, &mut unread, HEAD_READ_BYTES).await? > 0 {
            unread.clear();
        }
        Ok(())
    };
    tokio::time::timeout(LINGER, drained).await.unwrap_or(Ok(()))
}

/// Whether the answer may be 304 or 412 instead of the object (RFC 9110 section 13.1).
fn is_conditional(request: &RequestHead) -> bool {
    ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"]
        .iter()
        .any(|name| request.headers().contains(name))
}

/// Reads what there is, about `most` bytes; zero at the end of the stream.
pub(super) async fn read_some(from: &TcpStream, into: &mut BytesMut, most: usize) -> io::Result<usize> {
    loop {
        from.readable().await?;
        into.reserve(most);
        match from.try_read_buf(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome,
        }
    }
}
