package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Load reads the live records and checks them against what the index says they
// should be: each by its checksum, all of them by number and digest, the index
// for gaps, and its end against HEAD.
func (l *disk) Load(add func(*storage.Record) error) (storage.Extent, error) {
	var extent storage.Extent
	err := l.reading("the engine's files", func() (err error) {
		extent, err = l.load(add)
		return err
	})
	if err != nil {
		return storage.Extent{}, err
	}
	return extent, nil
}

func (l *disk) load(add func(*storage.Record) error) (extent storage.Extent, err error) {
	if err := l.prepare(); err != nil {
		return extent, err
	}
	var oldest, newest change
	index := make(chan error, 1)
	go func() {
		index <- l.reading("the index", func() (err error) {
			oldest, newest, err = l.scanIndex()
			return err
		})
	}()
	var found tally
	err = l.scanRecords(func(r *storage.Record) error {
		found.live++
		found.digest ^= fingerprint(r.Key, r.Modified)
		return add(r)
	})
	if err := errors.Join(<-index, err); err != nil {
		return extent, err
	}
	found.revision, found.bytes = newest.revision, newest.bytes
	if found != newest.tally {
		return extent, l.damage(fmt.Sprintf("there should be %d records at revision %d, and %d were found that differ from them",
			newest.live, newest.revision, found.live), nil)
	}
	if err := l.checkMark(newest.tally); err != nil {
		return extent, err
	}
	l.tail, l.durable = newest.tally, newest.tally
	return storage.Extent{Revision: newest.revision, Oldest: oldest.revision, Bytes: newest.bytes - oldest.bytes}, nil
}

// prepare makes an empty engine a log, and refuses one of another format.
func (l *disk) prepare() error {
	v, closer, err := l.db.Get([]byte(formatKey))
	if err == nil {
		defer closer.Close()
		if string(v) != formatName {
			return fmt.Errorf("the data in %s has format %q, this program knows %q: use the version of trellis that wrote it", l.dir, v, formatName)
		}
		return nil
	}
	if !errors.Is(err, pebble.ErrNotFound) {
		return l.damage("the format", err)
	}
	if err := l.checkEmpty(); err != nil {
		return err
	}
	batch := l.db.NewBatch()
	if err := batch.Set([]byte(formatKey), []byte(formatName), nil); err != nil {
		return err
	}
	key := appendIndexKey(nil, firstRevision)
	value := appendChange(nil, &change{tally: tally{revision: firstRevision}})
	seal(key, value)
	if err := batch.Set(key, value, nil); err != nil {
		return err
	}
	return l.commit(batch)
}

// checkEmpty makes sure that an engine without a format holds nothing.
func (l *disk) checkEmpty() error {
	it, err := l.db.NewIter(nil)
	if err != nil {
		return l.damage("the engine's files", err)
	}
	defer it.Close()
	if it.First() {
		return l.damage("the format is missing", nil)
	}
	return it.Error()
}

// bounds of the index and of the versions.
func indexBounds(from int64) *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: appendIndexKey(nil, from), UpperBound: []byte{indexPrefix + 1}}
}

// scanIndex reads the index's ends and makes sure that nothing is missing between.
func (l *disk) scanIndex() (oldest, newest change, err error) {
	it, err := l.db.NewIter(indexBounds(0))
	if err != nil {
		return oldest, newest, l.damage("the index", err)
	}
	defer it.Close()
	if !it.First() {
		return oldest, newest, l.damage("the index is gone", it.Error())
	}
	if oldest, err = l.change(it); err != nil {
		return oldest, newest, err
	}
	expect := oldest.revision
	for ; it.Valid(); it.Next() {
		k := it.Key()
		if len(k) != 9 || int64(binary.BigEndian.Uint64(k[1:])) != expect {
			return oldest, newest, l.damage(fmt.Sprintf("revision %d is missing", expect), nil)
		}
		expect++
	}
	if err := it.Error(); err != nil {
		return oldest, newest, l.damage("the index", err)
	}
	it.Last()
	newest, err = l.change(it)
	return oldest, newest, err
}

// change decodes the index entry it stands at.
func (l *disk) change(it *pebble.Iterator) (change, error) {
	v, err := it.ValueAndErr()
	if err != nil {
		return change{}, l.damage("the index", err)
	}
	c, err := decodeChange(it.Key(), v)
	if err != nil {
		return change{}, l.damage(fmt.Sprintf("the index at %q", it.Key()), err)
	}
	return c, nil
}

// scanRecords calls add for the newest version of each key that is not deleted.
func (l *disk) scanRecords(add func(*storage.Record) error) error {
	it, err := l.db.NewIter(&pebble.IterOptions{LowerBound: []byte{versionPrefix}, UpperBound: []byte{versionPrefix + 1}})
	if err != nil {
		return l.damage("the records", err)
	}
	defer it.Close()
	var last []byte // prefix of the engine keys of the key that was seen last, and what ends them
	for it.First(); it.Valid(); {
		k := it.Key()
		if len(last) > 0 && bytes.HasPrefix(k, last) && len(k) == len(last)+8 {
			last[len(last)-1]++ // older versions: go to the next key
			it.SeekGE(last)
			last = last[:0]
			continue
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return l.damage("the records", err)
		}
		r, err := decodeVersion(k, v)
		if err != nil {
			return l.damage(fmt.Sprintf("the record at %q", k), err)
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
		return l.damage("the records", err)
	}
	return nil
}
