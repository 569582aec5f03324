package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
)

// Load reads the live records and compares them with the index. It verifies the checksum of each record, the number
// and digest of all records, and that the index has no gaps. It returns the oldest and the newest index entry.
func (e *Engine) Load(add func(*storage.Record) error) (oldest, newest format.Change, err error) {
	ends := make(chan [2]format.Change, 1) // buffered, so that an abandoned goroutine does not block
	err = e.Read("the engine's files", func() error {
		oldest, newest, err := e.loadAll(add)
		ends <- [2]format.Change{oldest, newest}
		return err
	})
	if err != nil {
		return format.Change{}, format.Change{}, err
	}
	found := <-ends
	return found[0], found[1], nil
}

func (e *Engine) loadAll(add func(*storage.Record) error) (oldest, newest format.Change, err error) {
	index := make(chan error, 1)
	go func() {
		index <- e.Read("the index", func() (err error) {
			oldest, newest, err = e.scanIndex()
			return err
		})
	}()
	var found format.Tally
	err = e.scanRecords(func(r *storage.Record) error {
		found.Add(r.Key, r.Modified)
		return add(r)
	})
	if err := errors.Join(<-index, err); err != nil {
		return oldest, newest, err
	}
	found.Revision, found.Bytes = newest.Revision, newest.Bytes
	if found != newest.Tally {
		return oldest, newest, e.damage(fmt.Sprintf(
			"the records differ from the index at revision %d: found %d records, want %d",
			newest.Revision, found.Live, newest.Live), nil)
	}
	return oldest, newest, nil
}

// Prepare writes the format and the first revision to an empty engine. It upgrades an engine in the previous
// format, and returns an error for an unknown one.
func (e *Engine) Prepare() error {
	v, closer, err := e.DB.Get([]byte(format.Key))
	if err == nil {
		found := string(v)
		switch err := closer.Close(); {
		case err != nil || found == format.Name:
			return err
		case found == format.NameV1: // make older versions of the program refuse the directory
			batch := e.DB.NewBatch()
			if err := batch.Set([]byte(format.Key), []byte(format.Name), nil); err != nil {
				return err
			}
			return e.Commit(batch)
		}
		return fmt.Errorf("cannot read the data in %s: it has the format %q, but this program supports only %q: "+
			"use the version of trellis that wrote the data", e.Dir, found, format.Name)
	}
	if !errors.Is(err, pebble.ErrNotFound) {
		return e.damage("the format", err)
	}
	if err := e.checkEmpty(); err != nil {
		return err
	}
	batch := e.DB.NewBatch()
	if err := batch.Set([]byte(format.Key), []byte(format.Name), nil); err != nil {
		return err
	}
	key := format.AppendIndexKey(nil, format.FirstRevision)
	value := format.AppendChange(nil, &format.Change{Tally: format.Tally{Revision: format.FirstRevision}})
	format.Seal(key, value)
	if err := batch.Set(key, value, nil); err != nil {
		return err
	}
	return e.Commit(batch)
}

// checkEmpty returns a *DamageError if the engine is not empty. It is called for an engine without a format.
func (e *Engine) checkEmpty() error {
	it, err := e.DB.NewIter(nil)
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
	return &pebble.IterOptions{LowerBound: format.AppendIndexKey(nil, from), UpperBound: []byte{format.IndexPrefix + 1}}
}

// scanIndex returns the oldest and the newest index entry, and checks that no revision in between is missing.
func (e *Engine) scanIndex() (oldest, newest format.Change, err error) {
	it, err := e.DB.NewIter(indexBounds(0))
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
	expect := oldest.Revision
	for ; it.Valid(); it.Next() {
		k := it.Key()
		if len(k) != format.IndexKeySize || format.RevisionOfIndexKey(k) != expect {
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
func (e *Engine) change(it *pebble.Iterator) (format.Change, error) {
	v, err := it.ValueAndErr()
	if err != nil {
		return format.Change{}, e.damage("the index", err)
	}
	c, err := format.DecodeChange(it.Key(), v)
	if err != nil {
		return format.Change{}, e.damage(fmt.Sprintf("the index at %q", it.Key()), err)
	}
	return c, nil
}

// scanRecords calls add for the newest version of each key that is not deleted.
func (e *Engine) scanRecords(add func(*storage.Record) error) error {
	it, err := e.DB.NewIter(&pebble.IterOptions{
		LowerBound: []byte{format.VersionPrefix}, UpperBound: []byte{format.VersionPrefix + 1},
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
		r, err := format.DecodeVersion(k, v)
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

// CheckContains returns a *DamageError unless the history contains a revision with the totals t.
func (e *Engine) CheckContains(t format.Tally) error {
	key := format.AppendIndexKey(nil, t.Revision)
	value, closer, err := e.DB.Get(key)
	if err != nil {
		return e.damage(fmt.Sprintf("revision %d", t.Revision), err)
	}
	defer closer.Close()
	c, err := format.DecodeChange(slices.Clone(key), value)
	if err != nil || c.Tally != t {
		return e.damage(fmt.Sprintf("the data of revision %d differ from the data that were written", t.Revision), err)
	}
	return nil
}
