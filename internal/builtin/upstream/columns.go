package upstream

import (
	"context"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
)

// printed prints kinds as kubectl has always shown them. Making it takes a while, and all kinds share it.
var printed = sync.OnceValue(func() rest.TableConvertor {
	return printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}
})

// Columns are the columns of a Table of the kind.
func (k *Kind) Columns() ([]metav1.TableColumnDefinition, error) {
	list, err := legacyscheme.Scheme.New(k.Storage().internal.WithKind(k.Names.ListKind))
	if err != nil {
		return nil, fmt.Errorf("upstream: columns: %w", err)
	}
	t, err := k.table().ConvertToTable(context.Background(), list, nil)
	if err != nil {
		return nil, fmt.Errorf("upstream: columns of %s: %w", k.Names.Plural, err)
	}
	return slices.Clone(t.ColumnDefinitions), nil // all kinds' columns are shared
}

// Row is the row of obj in a Table, its Object left out. Ages and durations in it are words as of now: a row is
// not to be kept.
func (k *Kind) Row(obj Object) (metav1.TableRow, error) {
	t, err := k.table().ConvertToTable(context.Background(), obj, &metav1.TableOptions{NoHeaders: true})
	if err != nil {
		return metav1.TableRow{}, fmt.Errorf("upstream: row of %s: %w", k.Names.Plural, err)
	}
	if len(t.Rows) != 1 {
		return metav1.TableRow{}, fmt.Errorf("upstream: %s printed as %d rows", k.Names.Plural, len(t.Rows))
	}
	row := t.Rows[0]
	row.Object.Object = nil
	return row, nil
}
