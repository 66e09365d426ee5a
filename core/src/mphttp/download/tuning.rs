//! The constants of the split engine, each with its reason.

use std::time::Duration;

/// Bytes compared at each boundary between connections. FLEETY says "a small piece"; 1 KiB is
/// less than a packet and holds more than any run of equal bytes that separate versions share by
/// chance.
pub const OVERLAP_BYTES: u64 = 1024;

/// Round-trip time assumed before any measurement: a cellular link's.
pub const UNKNOWN_RTT: Duration = Duration::from_millis(100);

/// Rate assumed for a path when nothing at all is known.
pub const UNKNOWN_RATE_BITS_PER_SECOND: u64 = 10_000_000;

/// The arrival rate remembers this many round trips: long enough to see through the bursts of slow
/// start, short enough to follow its doubling.
pub const RATE_MEMORY_RTTS: f32 = 1.5;

/// Shortest memory of the arrival rate, for paths with very small round-trip times.
pub const LEAST_RATE_MEMORY: Duration = Duration::from_millis(40);

/// First request on a connection of unknown rate: what slow start with ten segments (RFC 6928)
/// brings in the first three round trips.
pub const FIRST_BLOCK: u64 = 64 * 1024;

/// Largest first request. However fast the path, slow start brings no more before the next request
/// is there, and what others take over of it would come all the same.
pub const LARGEST_OPENING: u64 = 128 * 1024;

/// Smallest request, so that response heads cost at most 2-3%.
pub const LEAST_BLOCK: u64 = 16 * 1024;

/// Largest request; larger ones save nothing and can be taken over less finely.
pub const LARGEST_BLOCK: u64 = 1024 * 1024;

/// A request asks for what arrives in this time.
pub const BLOCK_TIME: Duration = Duration::from_millis(100);

/// ... but for at least this many times what the server takes to begin an answer: it answers one
/// request after the other, and while it thinks the connection carries nothing.
pub const BLOCK_THINK_TIMES: u32 = 8;

/// ... and this many times as much in slow start, whose rate grows meanwhile.
pub const BLOCK_THINK_GROWTH: u64 = 8;

/// Answers of a connection of which the quickest tells how long the server thinks.
pub const THINK_SAMPLES: usize = 3;

/// Less than this is taken for none: delays of the path and of this device.
pub const LEAST_THINK: Duration = Duration::from_millis(20);

/// No server is granted more: what a block asks for must be bounded.
pub const MOST_THINK: Duration = Duration::from_secs(5);

/// Round trips after the first byte during which a connection is taken to be in slow start.
pub const RAMP_ROUNDS: u32 = 10;

/// Growth of the rate in a round trip below which slow start seems to be over ...
pub const LEAST_GROWTH: f64 = 1.25;

/// ... when it is seen in this many round trips in a row.
pub const FLAT_ROUNDS: u32 = 2;

/// Round trips' worth of bytes kept outstanding in slow start (the next round brings twice, the
/// one after four times what the last brought; the rate lags by one).
pub const AHEAD_ROUNDS_RAMP: f32 = 4.0;

/// Round trips' worth of bytes kept outstanding at a steady rate.
pub const AHEAD_ROUNDS: f32 = 1.25;

/// Extra cover for a request's jitter on its way.
pub const AHEAD_MARGIN: Duration = Duration::from_millis(25);

/// Requests in flight on one connection; servers bound what they read ahead.
pub const MOST_PIPELINED: usize = 8;

/// Silence in smoothed round trips after which an owed byte is asked for elsewhere.
pub const LATE_RTTS: f32 = 1.5;

/// Least such silence: below it, delayed acknowledgements and scheduling noise look like losses.
pub const LEAST_LATE: Duration = Duration::from_millis(130);

/// ... nor below the time that these bytes take at the rate measured before: four segments.
pub const LATE_BYTES: u64 = 6000;

/// Silence in smoothed round trips after which a connection is closed.
pub const DEAD_RTTS: u32 = 8;

/// Least such silence: two retransmission timeouts of 200 ms and their backoff (RFC 6298).
pub const LEAST_DEAD: Duration = Duration::from_millis(800);

/// A connection attempt is given up after this and made anew; the kernel's own SYN timer starts at 1 s.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Delay before a failed path is tried again, doubled with every further failure.
pub const FIRST_RETRY: Duration = Duration::from_millis(250);

/// Least time between two connection attempts over one path, whatever the server does.
pub const LEAST_RECONNECT: Duration = Duration::from_millis(50);

/// Longest wait that a server's Retry-After is granted; the path may work sooner.
pub const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(20);

/// Longest delay between attempts on a failed path.
pub const LONGEST_RETRY: Duration = Duration::from_secs(4);

/// The whole download fails after this time without a byte from any path.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// ... but a server that takes a range request and holds its answer is given this time, as browsers
/// give it. The client's own request, which may be a long poll, is held as long as the client waits.
pub const FIRST_ANSWER_PATIENCE: Duration = Duration::from_secs(300);

/// The first request is repeated on the next path when not even a connection stands after this
/// many round trips.
pub const OPENING_CONNECT_RTTS: u32 = 3;

/// ... but not earlier than this.
pub const OPENING_CONNECT_LEAST: Duration = Duration::from_millis(450);

/// ... unless a connection to the server stands on another path: then the server is there, a packet was lost
/// (it would be sent again after a second, RFC 6298 section 2), and the request costs nothing elsewhere.
pub const OPENING_CONNECT_BESIDE: Duration = Duration::from_millis(100);

/// ... or when the server's host has not even acknowledged it for this long: three retransmissions on an
/// everyday path.
pub const OPENING_UNACKNOWLEDGED_WAIT: Duration = Duration::from_millis(1500);

/// ... or, where the kernel does not say what was acknowledged, when its answer takes longer than this;
/// servers that compute a page may take most of it.
pub const OPENING_UNKNOWN_WAIT: Duration = Duration::from_secs(5);

/// An answer without the object waits this long for that of a preferred path: longer than it takes a lost
/// first packet to be sent again (a second, RFC 6298 section 2) and as long as a connection is waited for.
pub const PREFERRED_ANSWER_PATIENCE: Duration = CONNECT_TIMEOUT;

/// Attempts on each path after which a server that never answered is given up.
pub const OPENING_ATTEMPTS: u32 = 3;

/// A part is taken over only when that ends it sooner by this much at least.
pub const LEAST_GAIN: Duration = Duration::from_millis(8);

/// Smallest part worth a request of its own.
pub const LEAST_TAKE: u64 = 4 * 1024;

/// A response that runs past what is wanted of it is cut when more than this would be wasted.
pub const LEAST_CUT: u64 = 128 * 1024;

/// ... and more than comes in this many round trips.
pub const CUT_ROUNDS: u32 = 4;

/// A connection that will be cut is succeeded by a new one opened this many round trips before.
pub const SUCCESSOR_ROUNDS: u32 = 4;

/// Fewer bytes than this are left to the first path, as two round trips bring as much ...
pub const LEAST_SPLIT: u64 = 64 * 1024;

/// ... unless it looks like taking longer than this.
pub const SMALL_PATIENCE: Duration = Duration::from_millis(500);

/// Length of the first suffix request, when the object's size is still unknown.
pub const SUFFIX_BLOCK: u64 = 128 * 1024;

/// ... and at most one part in this many of the memory, so that it fits beside the window.
pub const SUFFIXES_IN_MEMORY: u64 = 16;

/// The buffer holds what all paths bring in this time (tau in FLEETY section 4.2).
pub const BUFFER_TIME: Duration = Duration::from_secs(8);

/// The buffer is never planned smaller than this while rates are still unknown: what 30 Mbit/s
/// bring in [`BUFFER_TIME`]. A client's own response is only cut for objects larger than the window.
pub const LEAST_WINDOW: u64 = 32 * 1024 * 1024;

/// Part of the memory bound that the window uses; the rest is for bytes that come twice.
pub const WINDOW_OF_MEMORY: f64 = 0.75;

/// Longest time between two looks at the plan while bytes are outstanding and something other than
/// their arrival may call for a decision.
pub const REPLAN_INTERVAL: Duration = Duration::from_millis(25);

/// ... and while every connection brings bytes: as often as the kernel is asked for round-trip
/// times (FLEETY section 5). A thousand downloads wake the processor often enough.
pub const STEADY_REPLAN_INTERVAL: Duration = Duration::from_millis(200);

/// Failed attempts in a row on every other path after which one without ranges is tried again.
pub const FEW_FAILURES: u32 = 2;

/// Failed attempts in a row after which a path is no longer tried while another works.
pub const MOST_FAILURES: u32 = 8;
