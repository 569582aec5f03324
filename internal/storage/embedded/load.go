package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// load reads the live records and compares them with the index. It verifies the checksum of each record, the number
// and digest of all records, and that the index has no gaps. It returns the oldest and the newest index entry.
func (e *engine) load(add func(*storage.Record) error) (oldest, newest change, err error) {
	ends := make(chan [2]change, 1) // buffered, so that an abandoned goroutine does not block
	err = e.read("the engine's files", func() error {
		oldest, newest, err := e.loadAll(add)
		ends <- [2]change{oldest, newest}
		return err
	})
	if err != nil {
		return change{}, change{}, err
	}
	found := <-ends
	return found[0], found[1], nil
}

func (e *engine) loadAll(add func(*storage.Record) error) (oldest, newest change, err error) {
	index := make(chan error, 1)
	go func() {
		index <- e.read("the index", func() (err error) {
			oldest, newest, err = e.scanIndex()
			return err
		})
	}()
	var found tally
	err = e.scanRecords(func(r *storage.Record) error {
		found.add(r.Key, r.Modified)
		return add(r)
	})
	if err := errors.Join(<-index, err); err != nil {
		return oldest, newest, err
	}
	found.revision, found.bytes = newest.revision, newest.bytes
	if found != newest.tally {
		return oldest, newest, e.damage(fmt.Sprintf(
			"the records differ from the index at revision %d: found %d records, want %d",
			newest.revision, found.live, newest.live), nil)
	}
	return oldest, newest, nil
}

// prepare writes the format and the first revision to an empty engine. It upgrades an engine in the previous
// format, and returns an error for an unknown one.
func (e *engine) prepare() error {
	v, closer, err := e.db.Get([]byte(formatKey))
	if err == nil {
		format := string(v)
		switch err := closer.Close(); {
		case err != nil || format == formatName:
			return err
		case format == formatNameV1: // make older versions of the program refuse the directory
			batch := e.db.NewBatch()
			if err := batch.Set([]byte(formatKey), []byte(formatName), nil); err != nil {
				return err
			}
			return e.commit(batch)
		}
		return fmt.Errorf("cannot read the data in %s: it has the format %q, but this program supports only %q: "+
			"use the version of trellis that wrote the data", e.dir, format, formatName)
	}
	if !errors.Is(err, pebble.ErrNotFound) {
		return e.damage("the format", err)
	}
	if err := e.checkEmpty(); err != nil {
		return err
	}
	batch := e.db.NewBatch()
	if err := batch.Set([]byte(formatKey), []byte(formatName), nil); err != nil {
		return err
	}
	key := appendIndexKey(nil, firstRevision)
	value := appendChange(nil, &change{tally: tally{revision: firstRevision}})
	seal(key, value)
	if err := batch.Set(key, value, nil); err != nil {
		return err
	}
	return e.commit(batch)
}

// checkEmpty returns a *DamageError if the engine is not empty. It is called for an engine without a format.
func (e *engine) checkEmpty() error {
	it, err := e.db.NewIter(nil)
	if err != nil {
		return e.damage("the engine's files", err)
	}
	defer it.Close()
	if it.First() {
		return e.damage("the format is missing", nil)
	}
	return it.Error()
}

// indexBounds returns iterator bounds for the index, starting at revision from.
func indexBounds(from int64) *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: appendIndexKey(nil, from), UpperBound: []byte{indexPrefix + 1}}
}

// scanIndex returns the oldest and the newest index entry, and checks that no revision in between is missing.
func (e *engine) scanIndex() (oldest, newest change, err error) {
	it, err := e.db.NewIter(indexBounds(0))
	if err != nil {
		return oldest, newest, e.damage("the index", err)
	}
	defer it.Close()
	if !it.First() {
		return oldest, newest, e.damage("the index is missing", it.Error())
	}
	if oldest, err = e.change(it); err != nil {
		return oldest, newest, err
	}
	expect := oldest.revision
	for ; it.Valid(); it.Next() {
		k := it.Key()
		if len(k) != indexKeySize || revisionOfIndexKey(k) != expect {
			return oldest, newest, e.damage(fmt.Sprintf("revision %d is missing", expect), nil)
		}
		expect++
	}
	if err := it.Error(); err != nil {
		return oldest, newest, e.damage("the index", err)
	}
	it.Last()
	newest, err = e.change(it)
	return oldest, newest, err
}

// change decodes the index entry at the iterator's position.
func (e *engine) change(it *pebble.Iterator) (change, error) {
	v, err := it.ValueAndErr()
	if err != nil {
		return change{}, e.damage("the index", err)
	}
	c, err := decodeChange(it.Key(), v)
	if err != nil {
		return change{}, e.damage(fmt.Sprintf("the index at %q", it.Key()), err)
	}
	return c, nil
}

// scanRecords calls add for the newest version of each key that is not deleted.
func (e *engine) scanRecords(add func(*storage.Record) error) error {
	it, err := e.db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{versionPrefix}, UpperBound: []byte{versionPrefix + 1},
	})
	if err != nil {
		return e.damage("the records", err)
	}
	defer it.Close()
	var last []byte // engine key of the last key without its revision
	for it.First(); it.Valid(); {
		k := it.Key()
		if len(last) > 0 && bytes.HasPrefix(k, last) && len(k) == len(last)+8 {
			last[len(last)-1]++ // skip older versions and seek the next key
			it.SeekGE(last)
			last = last[:0]
			continue
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return e.damage("the records", err)
		}
		r, err := decodeVersion(k, v)
		if err != nil {
			return e.damage(fmt.Sprintf("the record at %q", k), err)
		}
		if r != nil {
			if err := add(r); err != nil {
				return err
			}
		}
		last = append(last[:0], k[:len(k)-8]...)
		it.Next()
	}
	if err := it.Error(); err != nil {
		return e.damage("the records", err)
	}
	return nil
}

// checkContains returns a *DamageError unless the history contains a revision with the totals t.
func (e *engine) checkContains(t tally) error {
	key := appendIndexKey(nil, t.revision)
	value, closer, err := e.db.Get(key)
	if err != nil {
		return e.damage(fmt.Sprintf("revision %d", t.revision), err)
	}
	defer closer.Close()
	c, err := decodeChange(slices.Clone(key), value)
	if err != nil || c.tally != t {
		return e.damage(fmt.Sprintf("the data of revision %d differ from the data that were written", t.revision), err)
	}
	return nil
}
