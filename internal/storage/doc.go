// Package storage defines the store of the API server: values under ordered keys, with one history of commits. Keys
// and values have no meaning here, so the package must not import anything about kinds or HTTP. Only packages below
// internal/storage access the disk or etcd.
//
// # Store
//
// All other packages use the interface Store. Its state changes only by commits, which are totally ordered by
// revisions. Head returns the newest state that this process has seen and never blocks. Fresh also includes all
// commits of other processes that completed before the call. Wait returns the head once it has reached a revision.
// At returns the state at an older revision, and Watch the changes after it. Errors that wrap ErrUnavailable
// are temporary. After ErrFailed, Head can still be read, but writes fail until the server is restarted.
//
// # Snapshots and history
//
// A Snapshot is the immutable state at one revision, so a list never observes concurrent changes. Snapshots share
// the unchanged nodes of a persistent B+ tree (package tree). The tree counts keys in logarithmic time. It also finds
// the newest change below a prefix and the differences between two snapshots, without reading the unchanged parts.
//
// Recent events are kept in memory. Undoing them results in the snapshots of the last revisions. A HistoryReader
// reads older snapshots from the log or from etcd. Reads of compacted revisions return a CompactedError.
//
// # Commits and guards
//
// A commit applies all of its writes or none. Each write contains the expected revision of its key. A guard
// contains the expected revision of a key that the commit only reads, or of all keys below a prefix. An example is
// the CRD that an object was validated against. If a condition does not hold, Commit returns a ConflictError with
// the current record, and the caller starts over from the new state. Commit returns once the writes are durable and
// visible in Head. ErrInDoubt means that the outcome of the commit is unknown.
//
// # Cursor, Replica and Follower
//
//   - Use a Cursor, returned by Watch, to process every single change below a prefix in order. It holds a position
//     in the history, not a copy of it. A cursor that falls too far behind ends with ErrLagging instead of slowing
//     down commits. MissedEvents reports whether the reader can start again from the head.
//   - Use a Follower for an index derived from the state. It has no goroutine and no queue. Refresh compares the
//     head with the last snapshot and processes only the differences.
//   - Embed a Replica to implement a Store. It provides all methods except Commit, Fresh and Failed. The owner of the
//     log publishes changes in the order of revisions, with Publish, Apply or Reset. Add the new store to
//     storagetest/suite_test.go, which runs the same tests on all stores.
//
// # Ways to follow changes
//
// They are separate because each gives up what another needs: a goroutine, all events, whole records, or no server.
//
//	mechanism                        use it for                          why it exists
//	Follower                         an index that requests read         includes each returned write; no goroutine
//	Cursor                           a watch, or a mechanism as below    each event, in order; fails if it lags
//	catalog.Live.Follow             the Catalog of kinds                a write of a CRD waits for its revision
//	engine.Feed                      metadata of all kinds               one cursor; a watch per kind costs 20 KiB
//	controllers/informer.Informer    controllers, which are clients      finds kinds; reads a Feed, or else the API
//
// # Implementations
//
// Package embedded stores the log on the local disk with Pebble, or in memory. One goroutine commits. It writes all
// waiting commits as one synced batch, and every write gets a separate revision. The store deletes expired keys,
// compacts its history, and reserves disk space for deletions. After a failed write, it reopens Pebble.
//
// Package etcd stores data in an etcd cluster. Other processes may write to the same keys. A commit is one
// transaction, and its writes share a revision. A watch keeps the replica up to date. Fresh reads etcd's revision,
// and concurrent callers share this read. A server that calls Join has a registration with a lease. Commits below
// Options.Everywhere wait until all registered servers have applied them. Without a valid registration, a server
// commits nothing, and Valid returns an error, so it must not answer requests. Each new connection is verified: if etcd
// has lost the history that the store has read, the store fails. It also fails if an event, a conflict or a response of
// etcd contradicts this history. It skips events that etcd repeats. After a failure, Valid, Fresh, At and Watch return
// ErrFailed, and the registration ends.
//
// # Crashes
//
// An acknowledged commit survives the crash of the process or machine. A commit in progress is found completely or
// not at all. In the embedded store, the file HEAD contains a durable revision that is at most one second old. Open
// returns a DamageError if the log does not reach this revision, unless the option AcceptLossAfter accepts the loss.
// New revisions then start above all lost ones.
package storage
