//! Who holds the listener's connections. Nobody has said who they are when a connection opens, so a full listener closes the oldest
//! connection that nobody known holds, of the address that has most of them. Whoever has a token therefore gets in: it is known with its
//! first request. Known principals keep their connections up to their share, and an eighth is left for admins and for whoever comes.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::auth::HttpPrincipal;
use super::shares::{PlaceGuard, PlaceShares};

/// Where a connection comes from. Of IPv6, a network of 64 bits is one: a single client has all of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientAddress(IpAddr);

impl From<IpAddr> for ClientAddress {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
            address @ IpAddr::V4(_) => address,
        })
    }
}

#[derive(Debug)]
struct OpenConnection {
    address: ClientAddress,
    evicted: CancellationToken,
    holder: Option<ConnectionHolder>,
}

/// Whoever holds a connection within their share: it is not closed for others.
#[derive(Debug)]
struct ConnectionHolder {
    /// `None`: whoever shows no token, on a path that needs none.
    name: Option<Arc<str>>,
    _place: PlaceGuard,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    by_number: BTreeMap<u64, OpenConnection>,
}

/// The connections of a listener.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTable {
    total: usize,
    shares: PlaceShares,
    open: Arc<Mutex<OpenConnections>>,
}

/// One connection; its place is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSeat {
    number: u64,
    address: ClientAddress,
    evicted: CancellationToken,
    table: ConnectionTable,
}

impl ConnectionTable {
    /// At most so many connections.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total,
            shares: PlaceShares::new(total),
            open: Arc::default(),
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from this address. Where there is none, a connection that nobody known holds is closed for it. `None`:
    /// all are held by somebody who is known.
    pub(crate) fn take(&self, from: IpAddr) -> Option<ConnectionSeat> {
        let mut open = self.open();
        if open.by_number.len() >= self.total {
            let number = open.least_entitled()?;
            if let Some(closed) = open.by_number.remove(&number) {
                closed.evicted.cancel();
            }
        }
        let (number, address) = (open.next, ClientAddress::from(from));
        open.next += 1;
        let evicted = CancellationToken::new();
        open.by_number.insert(
            number,
            OpenConnection {
                address,
                evicted: evicted.clone(),
                holder: None,
            },
        );
        Some(ConnectionSeat {
            number,
            address,
            evicted,
            table: self.clone(),
        })
    }
}

impl OpenConnections {
    /// The oldest connection without a holder, of the address that has most of these.
    fn least_entitled(&self) -> Option<u64> {
        let unheld = || self.by_number.iter().filter(|(_, open)| open.holder.is_none());
        let mut counts: HashMap<ClientAddress, usize> = HashMap::new();
        for (_, open) in unheld() {
            *counts.entry(open.address).or_default() += 1;
        }
        let most = counts
            .into_iter()
            .max_by_key(|(address, count)| (*count, *address))?
            .0;
        unheld()
            .find(|(_, open)| open.address == most)
            .map(|(number, _)| *number)
    }
}

impl ConnectionSeat {
    /// Where it comes from.
    pub(crate) const fn address(&self) -> ClientAddress {
        self.address
    }

    /// Completes when the connection is closed for another one.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Somebody made a request on it that is answered: with a token that is known, or on a path that needs none. They keep the
    /// connection as long as they have no more than their share.
    pub(crate) fn keep_for(&self, principal: Option<&HttpPrincipal>) {
        let name = principal.map(|principal| Arc::clone(&principal.name));
        let mut open = self.table.open();
        let Some(own) = open.by_number.get_mut(&self.number) else {
            return;
        };
        // Who has shown a token keeps the connection when they ask for a page that needs none.
        if own
            .holder
            .as_ref()
            .is_some_and(|holder| name.is_none() || holder.name == name)
        {
            return;
        }
        // The place of the holder before counts no more.
        own.holder = None;
        // silent-ok: beyond their share, the connection serves until another one needs its place
        own.holder = self
            .table
            .shares
            .take_place(principal)
            .ok()
            .map(|place| ConnectionHolder { name, _place: place });
    }
}

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        self.table.open().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{ClientAddress, ConnectionSeat, ConnectionTable};
    use crate::access::{Scope, Token};
    use crate::http::auth::HttpPrincipal;

    fn principal(name: &str, scope: Scope) -> HttpPrincipal {
        HttpPrincipal::of_token(&Token::of_text(name, "secret", vec![scope]))
    }

    fn at(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_open(seat: &ConnectionSeat) -> bool {
        !seat.evicted.is_cancelled()
    }

    #[test]
    fn a_full_listener_closes_the_oldest_connection_of_the_greediest_stranger() {
        let table = ConnectionTable::new(16);
        let stranger: Vec<_> = (0..12).map(|_| table.take(at(1)).unwrap()).collect();
        let others: Vec<_> = (2..6).map(|n| table.take(at(n)).unwrap()).collect();
        let admin = table.take(at(1)).unwrap();
        admin.keep_for(Some(&principal("ann", Scope::Admin)));
        assert!(!is_open(&stranger[0]) && stranger[1..].iter().all(is_open));
        assert!(others.iter().all(is_open), "who holds few loses none");
        // The stranger comes again and again, and closes its own.
        let again: Vec<_> = (0..40).map(|_| table.take(at(1)).unwrap()).collect();
        assert!(is_open(&admin) && others.iter().all(is_open));
        assert_eq!(again.iter().filter(|seat| is_open(seat)).count(), 11);
        // A place that was given up is free.
        drop(again);
        drop(stranger);
        assert_eq!(table.open().by_number.len(), 5);
    }

    #[test]
    fn a_principal_keeps_its_share_and_an_eighth_is_left_for_admins() {
        let table = ConnectionTable::new(16);
        let (one, two) = (principal("one", Scope::Read), principal("two", Scope::Message));
        let hold = |from, who: Option<&HttpPrincipal>| {
            let seat = table.take(at(from)).unwrap();
            seat.keep_for(who);
            seat
        };
        let ones: Vec<_> = (0..16).map(|_| hold(1, Some(&one))).collect();
        let twos: Vec<_> = (0..16).map(|_| hold(2, Some(&two))).collect();
        let opened = |seats: &[ConnectionSeat]| seats.iter().filter(|seat| is_open(seat)).count();
        assert_eq!(opened(&ones[..8]), 8, "half of all");
        assert!((6..=8).contains(&opened(&twos)), "{}", opened(&twos));
        // Paths without a token are one principal.
        let open: Vec<_> = (0..16).map(|_| hold(3, None)).collect();
        assert!(opened(&ones[..8]) == 8 && opened(&open) <= 2);
        let admins: Vec<_> = (0..2)
            .map(|_| hold(3, Some(&principal("ann", Scope::Admin))))
            .collect();
        assert_eq!(opened(&admins), 2);
        assert!(table.take(at(9)).is_none(), "all are held by somebody known");
        assert_eq!((opened(&ones[..8]), opened(&admins)), (8, 2));
        // The same principal's next request takes no second place.
        ones.iter().for_each(|seat| seat.keep_for(Some(&one)));
        drop(admins);
        assert!(table.take(at(9)).is_some());
    }

    #[test]
    fn a_network_of_one_client_is_one_address() {
        let of = |text: &str| ClientAddress::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
