// Copying to the clipboard.

import { t } from "./i18n.js";
import { toast } from "./toast.js";

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast(t("shell.copied"));
  } catch {
    toast(t("shell.copy_refused"));
  }
}
