// Package purge deletes all objects of a resource, page by page.
package purge

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
)

const pageSize = 500

// Namespace deletes all objects of a resource in one namespace. It deletes page by page, because the response
// to DeleteCollection contains the deleted objects.
func Namespace(ctx context.Context, client metadata.ResourceInterface, options metav1.DeleteOptions) error {
	return EachPage(ctx, client, func(page *metav1.PartialObjectMetadataList, at metav1.ListOptions) error {
		if len(page.Items) == 0 {
			return nil
		}
		return client.DeleteCollection(ctx, options, at)
	})
}

// EachPage lists the objects of a resource and calls the function do for each page, until do returns an error. The
// options in the call select the page.
func EachPage(
	ctx context.Context, client metadata.ResourceInterface,
	do func(page *metav1.PartialObjectMetadataList, at metav1.ListOptions) error,
) error {
	at := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := client.List(ctx, at)
		if err != nil {
			return err
		}
		if err := do(page, at); err != nil {
			return err
		}
		if at.Continue = page.Continue; at.Continue == "" {
			return nil
		}
	}
}
