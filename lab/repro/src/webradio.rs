//! A web radio and someone who listens: the station sends as fast as it plays, and the player falls
//! silent when the next block is not there in time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Blocks of an eighth of a second at 128 kbit/s, what many web radios send.
const BLOCK_BYTES: usize = 2000;
const BLOCK_TIME: Duration = Duration::from_millis(125);

/// The player begins when it has heard so long: little, so that it shows what the network does.
const BUFFERED: Duration = Duration::from_secs(1);

/// How often a player that gets nothing looks whether it is still wanted.
const LOOK_AROUND: Duration = Duration::from_millis(50);

/// Sends the programme to one listener, until that one goes.
pub(crate) fn play(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut next = Instant::now();
    loop {
        stream.write_all(&[3; BLOCK_BYTES])?;
        next += BLOCK_TIME;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// When the player was silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Silence {
    pub(crate) longest: Duration,
    pub(crate) total: Duration,
}

impl Silence {
    fn add(&mut self, stall: Duration) {
        self.longest = self.longest.max(stall);
        self.total += stall;
    }
}

/// Listens for a while; `silence` tells at any time how it went so far.
pub(crate) fn listen(mut stream: &TcpStream, length: Duration, silence: &Mutex<Silence>) -> io::Result<()> {
    stream.set_read_timeout(Some(LOOK_AROUND))?;
    let start = Instant::now();
    let mut player = Player::default();
    let mut buffer = [0; BLOCK_BYTES];
    let (mut bytes, mut blocks) = (0, 0);
    while start.elapsed() < length {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes += count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
        let now = start.elapsed();
        for _ in blocks..bytes / BLOCK_BYTES {
            player.take_block(now);
        }
        blocks = bytes / BLOCK_BYTES;
        *silence.lock().expect("nothing panics while it holds this") = player.silence_until(now);
    }
    Ok(())
}

/// What plays block after block, each when the one before is over.
#[derive(Debug, Default)]
struct Player {
    /// When the next block is needed; none before the first came.
    due: Option<Duration>,
    silence: Silence,
}

impl Player {
    fn take_block(&mut self, at: Duration) {
        let due = self.due.unwrap_or(at + BUFFERED);
        if at > due {
            self.silence.add(at - due);
        }
        self.due = Some(due.max(at) + BLOCK_TIME);
    }

    /// With the silence that lasts at this moment.
    fn silence_until(&self, now: Duration) -> Silence {
        let mut silence = self.silence;
        let due = self.due.unwrap_or(BUFFERED);
        if now > due {
            silence.add(now - due);
        }
        silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn blocks_in_time_leave_no_silence() {
        let mut player = Player::default();
        (0..80).for_each(|number| player.take_block(ms(100 + 125 * number + 900 * (number % 2))));
        assert_eq!(player.silence_until(ms(10_000)), Silence::default());
    }

    #[test]
    fn what_comes_late_is_heard_as_silence_once() {
        let mut player = Player::default();
        player.take_block(ms(0));
        // The second is needed at 1125 ms; all that was held up comes with it.
        assert_eq!(player.silence_until(ms(1500)), Silence { longest: ms(375), total: ms(375) });
        (0..20).for_each(|_| player.take_block(ms(2125)));
        assert_eq!(player.silence_until(ms(3000)), Silence { longest: ms(1000), total: ms(1000) });
        assert_eq!(player.silence_until(ms(4725)), Silence { longest: ms(1000), total: ms(1100) });
    }

    #[test]
    fn a_station_that_never_comes_is_silence() {
        assert_eq!(Player::default().silence_until(ms(5000)), Silence { longest: ms(4000), total: ms(4000) });
    }
}
